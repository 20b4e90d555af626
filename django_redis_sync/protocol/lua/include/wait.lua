-- When a waiter has to ask again. In: waiting (what was ahead of one that just came). Out: reply.
local rank = waiting
if record then rank = call('ZRANK', QUEUE, token) end
if rank then
  -- Only as many waiters as there are holders watch a lease end, each its own: no herd at any.
  local told = math.min(BEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
  local ends = rank < card and call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
  if ends then told = math.max(1, math.min(told, tonumber(ends) - now + 1)) end
  if call('ZADD', WAITERS, whole(now + told + PATIENCE), token) == 1 then fresh[#fresh + 1] = WAITERS end
  latest = math.max(latest, now + told + PATIENCE)
  reply = {'wait', at, told, rank}
else
  reply = {'gone'} -- its limit became too small for it
end
