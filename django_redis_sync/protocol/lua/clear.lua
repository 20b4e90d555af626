-- clear: remove a lease, a waiter, or an away job. A job is away until its task queue delivers it again.
-- A tombstone then keeps the token of the lease or waiter from getting permits.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token overrides keep
--   token: the token of the lease or waiter, or the ID of the job
--   overrides, keep: as in acquire
-- Returns one of these texts:
--   "ok": the lease, waiter, or job was removed.
--   "gone": the lease, waiter, or job had already ended.
local token, overrides, keep = unpack(ARGV)
local packed, us, _, _, _, _, _, holder = compact_state(string.sub(LEASES, 1, -7))
if packed then
  if holder ~= token or token == '' then return 'gone' end
  redis.call('DEL', NEVER)
  expand(packed)
end
local name, record = open(token, keep, us, overrides)
-- the composer inserts here: count, grant
if name.places and redis.call('ZSCORE', string.sub(LEASES, 1, -7) .. 'due', token) then
  local base = string.sub(LEASES, 1, -7)
  local away, nth, last, ticket, _, _, share, job = string.match(record or '', JOB)
  if away ~= 'a' then return 'gone' end
  local due = math.max(name.now, tonumber(redis.call('ZSCORE', base .. 'due', token)))
  redis.call('DEL', NEVER)
  remove_job(base, token)
  -- Because of the state 'c' (cleared), `visit` drops the job's next delivery.
  note_job(name, base, token, 'c', nth, last, tonumber(ticket), 0, 1, share, job, due)
  finish(name)
  return 'ok'
end
local state, _, _, _, terms = string.match(record or '', RECORD)
local ends = redis.call('ZSCORE', LEASES, token)
if not (record or ends) or state == 'x' then return 'gone' end
remove(name, token, state, terms, ends)
write_tombstone(name, token)
sweep(name, nil)
hand_off(name, nil)
finish(name)
return 'ok'
