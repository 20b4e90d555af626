-- renew: move the end of a lease; also the confirm of a hand-over.
-- KEYS leases queue waiters info wake stats
-- ARGV token fence how ms nth keep
--   how: set (ms from now; inf: permanent) | confirm (the end stays)
--   nth: counts the renewals of this lease, so that a late copy of an older one changes nothing
-- Returns ok lease (ms left, or inf) | lost (expired, or another fence: nothing changed)
-- @include state record stats finish
local how, r = ARGV[3], parse(record)
local ends = tonumber(record and call('ZSCORE', LEASES, token) or 0)
if ends <= now or r.fence ~= ARGV[2] then
  count('l', 1)
  return {'lost'}
end
if r.state == 'g' then
  claim(r, ends)
  r.state = 'h'
end
if how == 'set' and tonumber(ARGV[5]) >= (tonumber(r.nth) or 0) then
  local moved = now + tonumber(ARGV[4])
  if ends == math.huge then recount = true end
  ends, r.lease, r.nth = moved, moved - now, ARGV[5]
  place(LEASES, ends, token)
end
put(token, format(r))
return finish({'ok', whole(ends - now)})
