-- release: give a lease back; also the undo of an acquire, and the give-up of a waiter.
-- KEYS leases queue waiters info wake
-- ARGV token fence how bury hold
--   how: release (this fence only) | undo (whatever the token has) | giveup (a lease that was
--   granted meanwhile is kept and claimed; a waiter leaves); bury: 1 when an acquire of this token
--   went unanswered; hold: ms after the grant until which the permits stay taken, 0 for none
-- Returns ok [fence lease when giveup found a grant] | lost (not ours: nothing changed) | gone
-- @include state finish sweep hand
local how, r = ARGV[3], parse(record)
local ends = tonumber(record and call('ZSCORE', LEASES, token) or 0)
local live = ends > now and r.state ~= 'k'
if r.state == 'k' or (how == 'release' and not (live and r.fence == ARGV[2])) then return {'lost'} end
if how == 'giveup' and live then
  call('ZREM', WAITERS, token)
  call('DEL', KEYS[5])
  return {'ok', r.fence, whole(ends - now)}
end

local keep = math.min(tonumber(r.fence or 0) / 1000, now) + tonumber(ARGV[5])
if how == 'release' and keep > now then
  if ends == math.huge then recount = true end
  call('ZREM', WAITERS, token)
  call('DEL', KEYS[5])
  r.state, r.lease = 'k', math.ceil(keep) - now
  put(token, format(r))
  place(LEASES, math.ceil(keep), token)
else
  if record then drop(token, record) end
  if ARGV[4] == '1' then bury(token) end
end
if call('ZCARD', QUEUE) > 0 then
  sweep()
  hand()
end
return finish({(live or r.state == 'k') and 'ok' or 'gone'})
