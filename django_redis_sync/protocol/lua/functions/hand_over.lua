-- What is free goes to the heads of the queue; dead heads are dropped on the way. `me`: the token that
-- asks again, if any. Returns what it is to be told, when it was granted.
local function hand_over(name, me)
  local reply, dead = nil, 0
  for _ = 1, BOUND do
    local head = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
    local t, ticket = head[1], head[2]
    if not t then break end
    local state, _, _, lease, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
    local permits, limit, channel = string.match(terms or '', TERMS)
    permits, limit = tonumber(permits), name.override or tonumber(limit)
    local deadline = state == 'w' and deadline_of(name, t, channel)
    if state == 'w' and deadline <= name.now and t ~= me then
      dead = dead + drop_dead(name, me)
      name.more = dead >= 2 * CHUNK -- a script stops the server: the rest is for the next ask
      if name.more then break end
    elseif state ~= 'w' or permits > limit then -- stale, or too large for a new limit: it would block the rest
      remove(name, t, state, terms, redis.call('ZSCORE', LEASES, t))
    elseif not fits(name, permits, limit) then
      name.head, name.head_ends = channel, deadline
      break -- no look past the head: small ones would starve a large one
    else
      local fence, ms = grant(name, t, permits, lease, terms, ticket, t ~= me)
      if t ~= me then
        tell(name, t, channel, fence, ms)
      else
        redis.call('ZREM', WAITERS, t)
        reply = 'ok ' .. fence .. ' ' .. ms
      end
    end
  end
  return reply
end
