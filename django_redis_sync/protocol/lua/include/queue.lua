-- Waiting: a place in the queue, and when to ask again.
local function enqueue(r)
  local last = call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
  call('ZADD', QUEUE, math.max(us, (last or 0) + 1), token)
  fresh[QUEUE] = true -- not `place`: a ticket is no time in ms
  r.state = 'w'
  put(token, format(r))
end

-- Only as many waiters as there are holders watch a lease end, each its own: no herd at any of them.
local function wait()
  local rank = call('ZRANK', QUEUE, token)
  if not rank then return {'gone'} end -- its limit became too small for it
  local told = math.min(BEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
  local ends = rank < card and call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
  if ends then told = math.max(1, math.min(told, tonumber(ends) - now + 1)) end
  place(WAITERS, now + told + PATIENCE, token)
  return {'wait', whole(now), told, rank}
end
