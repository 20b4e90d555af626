-- Removes `t`. In: t, state, permits (of its record), ends (the score of its lease).
-- Always everything that a token has, so that nothing of it can be believed later.
dropped = true
if ends then
  call('ZREM', LEASES, t)
  card = card - 1
  local many = tonumber(permits or 1)
-- @include weight
  extra = card > 0 and extra - weight + 1 or 0
  if ends == 'inf' then recount = true end
end
if state ~= 'h' then
  if state ~= 'g' then call('ZREM', QUEUE, t) end -- who was granted has left it
  call('ZREM', WAITERS, t)
  call('DEL', WAKE .. t)
end
call('HDEL', INFO, t)
