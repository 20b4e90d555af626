-- release: release a lease, undo an acquire, or remove a waiter.
-- KEYS leases never
-- ARGV token fence keep how tombstone hold mark place
--   how: one of these words:
--     release: release the lease with this fence
--     undo: remove any lease or waiter of the token
--     giveup: remove a waiter. If it was granted a lease meanwhile, claim the lease.
--     share: turn the lease of a writer into one of a reader
--     lost: only count a lost lease in the statistics. The reply is ok.
--   keep, mark: as in acquire
--   tombstone: 1 to write a tombstone, because an acquire of this token was not answered
--   hold: for how many ms after the grant the permits stay taken, or 0
--   place: the ID of the job that the holder has finished
-- Returns one of these texts. Words in capitals are values.
--   ok [FENCE LEASE]: done. The two values follow if `giveup` found a lease. LEASE: ms left, or inf.
--   no REASON WAITING MEAN_HOLD LIMIT: the waiter was removed. The values are those of a rejection, see reject.
--   lost: nothing changed, because the token holds no lease with this fence.
--   gone: the token had no lease that has not expired. Any waiter of the token is removed.
local token, fence, keep, how, _, _, mark, place = unpack(ARGV)
local base, how = string.sub(LEASES, 1, -7), how or 'release' -- base: the prefix of all keys of the name
if how == 'lost' then
  local time = redis.call('TIME')
  count(compact_fields(time[1] * 1000000 + time[2], keep, base .. 'stats'), 'l', 1)
  return 'ok'
end
local packed, us, last, expiry, ends, seen, peak, holder = compact_state(base)
if packed then
  local reply = end_compact(us, base, packed, how, last, expiry, ends, seen, peak, holder)
  if reply then return reply end
end
local name, record = open(token, keep, us, mark)
local state, nth, own, lease, terms = string.match(record or '', RECORD)
local ends = state and redis.call('ZSCORE', LEASES, token)
local live = tonumber(ends or 0) > name.now
if place then -- first, because without the lease, a copy of the job would count its worker as dead
  end_run(name, place, token, own)
end
if (how == 'release' or how == 'share') and not (live and own == fence) then return 'lost' end
if how == 'giveup' and live then
  claim(token)
  return 'ok ' .. own .. ' ' .. whole(name, tonumber(ends) - name.now)
end
-- insert here the functions: count, remove
local gave_up = how == 'giveup' and state == 'w' -- other outcomes were counted before
if how == 'share' then -- a lease of the whole name becomes one of one permit
  local permits, others = string.match(terms, '^(%d+)( .*)$')
  name.extra = name.extra - weight(tonumber(permits)) + 1
  put(name, token, state .. nth .. ' ' .. own .. ' ' .. lease .. ' 1' .. others)
else
  end_token(name, state, own, terms, ends, live)
end
if waiting_of(name) > 0 then
  if name.card > 0 then -- else no lease can have expired
    sweep(name, nil)
  end
  hand_off(name, nil)
end
finish(name)
return gave_up and answer_in_vain(name, terms) or live and 'ok' or 'gone'
