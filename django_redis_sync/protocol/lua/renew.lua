-- renew: move the end of a lease; also the confirm of a hand-over.
-- KEYS leases queue waiters info wake stats never
-- ARGV token fence how ms nth known keep
--   how: set (ms from now; inf: permanent) | adopt (set, by the new owner of a detached lease) |
--   confirm (the end stays)
--   nth: counts the renewals of this lease, so that a late copy of an older one changes nothing
--   known: the highest nth of the owner that detached it; above that, somebody else adopted it
-- Returns ok lease (ms left, or inf) | lost (expired, or another fence: nothing changed) | adopted
-- @include state record stats finish
local how, r = ARGV[3], parse(record)
local ends = tonumber(record and call('ZSCORE', LEASES, token) or 0)
if ends <= now or r.fence ~= ARGV[2] then
  count('l', 1)
  return {'lost'}
end
local nth, newest = tonumber(ARGV[5]), tonumber(r.nth) or 0
if how == 'adopt' and newest > tonumber(ARGV[6]) and newest ~= nth then return {'adopted'} end
if r.state == 'g' then
  claim(r, ends)
  r.state = 'h'
end
if how ~= 'confirm' and nth >= newest then
  local moved = now + tonumber(ARGV[4])
  if ends == math.huge then recount = true end
  ends, r.lease, r.nth = moved, moved - now, ARGV[5]
  place(LEASES, ends, token)
end
put(token, format(r))
return finish({'ok', whole(ends - now)})
