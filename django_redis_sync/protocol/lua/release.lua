-- release: give a lease back; also the undo of an acquire, and the give-up of a waiter.
-- KEYS leases queue waiters info wake stats never
-- ARGV token fence how bury hold keep
--   how: release (this fence only) | undo (whatever the token has) | giveup (a lease that was
--   granted meanwhile is kept and claimed; a waiter leaves) | share (a writer becomes a reader,
--   with the same lease); bury: 1 when an acquire of this token
--   went unanswered; hold: ms after the grant until which the permits stay taken, 0 for none
-- Returns ok [fence lease when giveup found a grant] | lost (not ours: nothing changed) | gone
-- @include state record stats finish
local how, r = ARGV[3], parse(record)
local score = record and call('ZSCORE', LEASES, token)
local ends = tonumber(score or 0)
local live = ends > now
if (how == 'release' or how == 'share') and not (live and r.fence == ARGV[2]) then
  count('l', 1)
  return {'lost'}
end
if how == 'giveup' and live then return claim(r, ends) end

if how == 'share' then
  extra, r.permits = extra - weight(r.permits) + 1, 1
  put(token, format(r))
else
  if live then
    count('r', PAIR + math.max(0, math.floor(now - r.fence / 1000)))
  elseif how == 'giveup' then
    count('t', 1)
  end
  if record and r.state ~= 'x' then drop(token, r, score) end
  if ARGV[4] == '1' then bury(token) end
  local keep = math.ceil(math.min(tonumber(r.fence or 0) / 1000, now) + tonumber(ARGV[5]))
  if how == 'release' and keep > now then -- under a token of its own, that no late copy knows
    r.state, r.lease = 'k', keep - now
    card, extra = card + 1, extra + weight(r.permits) - 1
    put('k' .. token, format(r))
    place(LEASES, keep, 'k' .. token)
  end
end
if call('ZCARD', QUEUE) > 0 then
-- @include sweep grant hand
  sweep()
  hand()
end
return finish({live and 'ok' or 'gone'})
