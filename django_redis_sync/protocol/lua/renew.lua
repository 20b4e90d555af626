-- renew: move the end of a lease; also the confirm of a hand-over.
-- KEYS leases queue waiters info wake stats
-- ARGV token fence how ms keep
--   how: set (ms from now; inf: permanent) | confirm (the end stays)
-- Returns ok lease (ms left, or inf) | lost (expired, or another fence: nothing changed)
-- @include state stats finish
local how, r = ARGV[3], parse(record)
local ends = tonumber(record and call('ZSCORE', LEASES, token) or 0)
if ends <= now or r.fence ~= ARGV[2] or r.state == 'k' then
  count('l', 1)
  return {'lost'}
end
if r.state == 'g' then
  claim(r, ends)
  r.state = 'h'
end
local moved = how == 'set' and now + tonumber(ARGV[4]) or ends
if moved ~= ends then
  if ends == math.huge then recount = true end
  r.lease = moved - now
  place(LEASES, moved, token)
end
put(token, format(r))
return finish({'ok', whole(moved - now)})
