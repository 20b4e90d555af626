-- release: release a lease, undo an acquire, or take a waiter out of the queue.
-- KEYS leases never
-- ARGV token fence keep how tombstone hold mark place
--   how: release (this fence only) | undo (whatever the token has) | giveup (a lease that was
--   granted meanwhile is kept and claimed; a waiter leaves) | share (a writer becomes a reader,
--   with the same lease) | lost (count that the lease ended under its holder); tombstone: 1 if an
--   acquire of this token went unanswered; hold: ms after the grant until which the permits stay
--   taken, 0 for none; place: of the job that its holder has done
-- Returns ok [fence lease when giveup found a grant] | no reason waiting mean_hold limit (a waiter gave up) | lost (not ours: nothing changed) | gone
local token, fence, keep, how, _, _, mark, place = unpack(ARGV)
local base, how = string.sub(LEASES, 1, -7), how or 'release' -- all keys of the name begin with base
if how == 'lost' then
  count(clock_only(keep, base .. 'stats'), 'l', 1)
  return 'ok'
end
local packed, us, last, expiry, ends, seen, peak, holder = compact_state(base)
if packed then
  local reply = end_compact(us, base, packed, how, last, expiry, ends, seen, peak, holder)
  if reply then return reply end
end
local name, record = open(token, keep, us)
if mark and mark ~= '-' then
  apply_override(name, mark)
end
local state, nth, own, lease, terms = string.match(record or '', RECORD)
local ends = state and redis.call('ZSCORE', LEASES, token)
local live = tonumber(ends or 0) > name.now
if place then -- first: a copy must not take the job for one whose worker died
  end_run(name, place, token, own)
end
if (how == 'release' or how == 'share') and not (live and own == fence) then return 'lost' end
if how == 'giveup' and live then
  claim(token)
  return 'ok ' .. own .. ' ' .. whole(name, tonumber(ends) - name.now)
end
-- make count remove
local gave_up = how == 'giveup' and state == 'w' -- else it was counted before
if how == 'share' then
  downgrade(name, token, state .. nth .. ' ' .. own .. ' ' .. lease, terms)
else
  end_token(name, state, own, terms, ends, live)
end
local waiting = redis.call('ZCARD', QUEUE)
if name.shared then waiting = waiting + redis.call('ZCARD', PARKED) end
if waiting > 0 then
  if name.card > 0 then -- without leases, none can be expired
    sweep(name, nil)
  end
  hand_off(name, nil)
end
finish(name)
return gave_up and answer_in_vain(name, terms) or live and 'ok' or 'gone'
