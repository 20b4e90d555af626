-- release: give a lease back; also the undo of an acquire, and the give-up of a waiter.
-- KEYS leases queue waiters info wake stats never
-- ARGV token fence how bury hold keep
--   how: release (this fence only) | undo (whatever the token has) | giveup (a lease that was
--   granted meanwhile is kept and claimed; a waiter leaves) | share (a writer becomes a reader,
--   with the same lease); bury: 1 when an acquire of this token
--   went unanswered; hold: ms after the grant until which the permits stay taken, 0 for none
-- Returns ok [fence lease when giveup found a grant] | lost (not ours: nothing changed) | gone
-- @include state
local how, t, me, reply = ARGV[3], token, nil, nil -- nobody here asks for permits
local state, nth, own, lease, permits, limit, channel, label = string.match(record or '', RECORD)
local ends = record and call('ZSCORE', LEASES, token)
local live = tonumber(ends or 0) > now
if (how == 'release' or how == 'share') and not (live and own == ARGV[2]) then
  local what, n = 'l', 1
-- @include counted
  return {'lost'}
end
if how == 'giveup' and live then
-- @include claimed
  return {'ok', own, whole(tonumber(ends) - now)}
end

if how == 'share' then
  local many = tonumber(permits)
-- @include weight
  extra, permits = extra - weight + 1, '1'
-- @include written
else
  if live or how == 'giveup' then
    local what, n = 't', 1
    if live then what, n = 'r', PAIR + math.max(0, math.floor(now - own / 1000)) end
-- @include counted
  end
  if record and state ~= 'x' then
-- @include removed
  end
  if ARGV[4] == '1' then
-- @include buried
  end
  local keep = math.ceil(math.min(tonumber(own or 0) / 1000, now) + tonumber(ARGV[5]))
  if how == 'release' and keep > now then -- under a token of its own, that no late copy knows
    local t, state, lease, many = 'k' .. token, 'k', whole(keep - now), tonumber(permits)
-- @include weight
    if card == 0 then fresh[#fresh + 1] = LEASES end
    card, extra = card + 1, extra + weight - 1
-- @include written
    call('ZADD', LEASES, whole(keep), t)
    latest = math.max(latest, keep)
  end
end
if call('ZCARD', QUEUE) > 0 then
  if card > 0 then -- otherwise nobody has anything that could be over
-- @include sweep
  end
-- @include hand
end
-- @include finish
return {live and 'ok' or 'gone'}
