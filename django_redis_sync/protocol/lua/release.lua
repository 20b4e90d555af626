-- release: release a lease, undo an acquire, or remove a waiter.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token fence keep how tombstone hold overrides id
--   fence: the fencing token of the lease
--   keep, overrides: as in acquire
--   how: one of these words:
--     "release" (the default): release the lease
--     "undo": remove the lease or the waiter of the token. `fence` is ignored.
--     "giveup": remove the waiter, which has waited in vain. If it has got a lease in the meantime, confirm the handoff
--       instead.
--     "withdraw": like "giveup", but the waiter counts as rejected, because its caller must not wait
--     "downgrade": turn the lease of a writer into the lease of a reader
--     "lost": only count a lost lease in the statistics. The reply is "ok".
--   tombstone: 1 to write a tombstone, because an acquire of this token was not answered
--   hold: the permits stay taken until this number of ms after the grant; 0 to free them now; -1 to free them now and to
--     give them back to the rate, because their caller has not used them
--   id: the ID of the job that the holder has run, if any
-- Returns one of these texts. Words in capitals are values.
--   "ok [FENCE LEASE]": done. If "giveup" or "withdraw" found a lease, FENCE and LEASE describe it. LEASE: ms left, or inf.
--   "no REASON WAITING MEAN_HOLD LIMIT [OPENS]": "giveup" or "withdraw" removed the waiter. For the values, see reject.
--   "lost": the token has no unexpired lease with this fence.
--   "gone": the token had no unexpired lease. If it had a waiter, "undo" has removed the waiter.
local token, fence, keep, how, _, _, overrides, id = unpack(ARGV)
local base, how = string.sub(LEASES, 1, -7), how or 'release' -- base: the prefix of all keys of the name
if how == 'lost' then
  local time = redis.call('TIME')
  count(compact_fields(time[1] * 1000000 + time[2], keep, base .. 'stats'), 'l', 1)
  return 'ok'
end
local packed, us, last, expiry, ends, seen, peak, holder = compact_state(base)
-- the composer inserts here: end_run
if packed then
  if id then
    end_run(base, id, token, (us - us % 1000) / 1000)
  end
  local reply = end_compact(us, base, packed, how, last, expiry, ends, seen, peak, holder)
  if reply then return reply end
end
local name, record = open(token, keep, us, overrides)
if id then
  end_run(base, id, token, name.now)
end
local state, nth, own, lease, terms = string.match(record or '', RECORD)
local ends = state and redis.call('ZSCORE', LEASES, token)
local live = tonumber(ends or 0) > name.now
if (how == 'release' or how == 'downgrade') and not (live and own == fence) then return 'lost' end
local vain = how == 'giveup' and 'timeout' or how == 'withdraw' and 'full' -- the reason why the waiter leaves
if vain and live then
  claim(token)
  return 'ok ' .. own .. ' ' .. whole(name, tonumber(ends) - name.now)
end
-- the composer inserts here: count, remove
local waited = vain and state == 'w' -- only a waiter is counted
if how == 'downgrade' then -- the lease had the whole name, and keeps one permit
  local permits, others = string.match(terms, '^(%d+)( .*)$')
  name.extra = name.extra - weight(tonumber(permits)) + 1
  put(name, token, state .. nth .. ' ' .. own .. ' ' .. lease .. ' 1' .. others)
else
  end_token(name, state, own, terms, ends, live)
end
if name.card == 0 and not name.shared or waiting_of(name) > 0 then
  if name.card > 0 then -- without leases, none can have expired
    sweep(name, nil)
  end
  hand_off(name, nil)
end
finish(name)
return waited and answer_in_vain(name, terms, vain) or live and 'ok' or 'gone'
