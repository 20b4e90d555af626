-- renew: move the end of a lease; also the confirm of a hand-over.
-- KEYS leases queue waiters info wake stats never
-- ARGV token fence how ms nth known keep
--   how: set (ms from now; inf: permanent) | adopt (set, by the new owner of a detached lease) |
--   confirm (the end stays)
--   nth: counts the renewals of this lease, so that a late copy of an older one changes nothing
--   known: the highest nth of the owner that detached it; above that, somebody else adopted it
-- Returns ok lease (ms left, or inf) | lost (expired, or another fence: nothing changed) | adopted
-- @include state
local how, t = ARGV[3], token
local state, nth, own, lease, permits, limit, channel, label = string.match(record or '', RECORD)
local ends = tonumber(record and call('ZSCORE', LEASES, token) or 0)
if ends <= now or own ~= ARGV[2] then
  local what, n = 'l', 1
-- @include counted
  return {'lost'}
end
local coming, newest = tonumber(ARGV[5]), tonumber(nth) or 0
if how == 'adopt' and newest > tonumber(ARGV[6]) and newest ~= coming then return {'adopted'} end
if state == 'g' then
-- @include claimed
  state = 'h'
end
if how ~= 'confirm' and coming >= newest then
  local moved = now + tonumber(ARGV[4])
  if ends == math.huge then recount = true end
  ends, lease, nth = moved, ARGV[4], ARGV[5]
  call('ZADD', LEASES, whole(ends), token)
  latest = math.max(latest, ends)
end
-- @include written finish
return {'ok', whole(ends - now)}
