-- Removes all that a token has, always, so that nothing of it can be believed later. `ends`: the score
-- of its lease, false when it has none.
local function remove(name, t, state, terms, ends)
  name.dropped = true
  if ends then
    redis.call('ZREM', LEASES, t)
    name.card = name.card - 1
    name.extra = name.card > 0 and name.extra - weight(tonumber(string.match(terms or '1', '^%d+'))) + 1 or 0
    if ends == 'inf' then name.recount = true end
  end
  if state ~= 'h' then -- a holder that said it is there has no place, deadline or wake-up any more
    if state ~= 'g' then redis.call('ZREM', QUEUE, t) end -- a winner has left it
    redis.call('ZREM', WAITERS, t)
    redis.call('DEL', wake_list(t))
  end
  redis.call('HDEL', INFO, t)
end
