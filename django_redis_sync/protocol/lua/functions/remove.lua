-- Remove a token from all keys, because a later script would treat a remaining entry as valid. `state`, `terms`: parts
-- of the token's record. `ends`: the end of its lease, or false if it has none.
local function remove(name, t, state, terms, ends)
  name.dropped = true
  local ticket = name.shared and state == 'w' and redis.call('ZSCORE', QUEUE, t)
  if ends then
    redis.call('ZREM', LEASES, t)
    name.card = name.card - 1
    name.extra = name.card > 0 and name.extra - weight(tonumber(string.match(terms or '1', '^%d+'))) + 1 or 0
    if ends == 'inf' then name.recount = true end
  end
  if state ~= 'h' then -- 'h': the holder has claimed its lease, so `t` is in none of these keys
    if state ~= 'g' then redis.call('ZREM', QUEUE, t) end -- 'g': the handoff has removed `t` from the queue
    redis.call('ZREM', WAITERS, t)
    redis.call('DEL', wake_key(t))
  end
  if name.shared then
    leave_share(name, t, terms, ends, ticket)
  end
  redis.call('HDEL', INFO, t)
end
