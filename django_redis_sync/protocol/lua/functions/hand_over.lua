-- What is free goes to the heads of the queue; dead heads are dropped on the way. `me`: the token that
-- asks again, if any. Returns what it is to be told, when it was granted.
local function hand_over(name, me)
  local reply
  for _ = 1, BOUND do
    local head = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
    local t, ticket = head[1], head[2]
    if not t then break end
    local state, _, _, lease, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
    local permits, limit, channel = string.match(terms or '', TERMS)
    permits, limit = tonumber(permits), name.override or tonumber(limit)
    local deadline = tonumber(redis.call('ZSCORE', WAITERS, t) or 0)
    if state ~= 'w' or (deadline <= name.now and t ~= me) or permits > limit then
      remove(name, t, state, terms, redis.call('ZSCORE', LEASES, t))
    elseif not fits(name, permits, limit) then
      break
    else
      local fence, ms = grant(name, t, permits, lease, terms, ticket, t ~= me)
      if t ~= me then
        tell(name, t, channel, fence, ms)
      else
        redis.call('ZREM', WAITERS, t)
        reply = {'ok', fence, ms}
      end
    end
  end
  return reply
end
