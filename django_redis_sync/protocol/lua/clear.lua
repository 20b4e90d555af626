-- clear: remove a lease or a waiter. A tombstone then keeps its token from getting permits.
-- If the waiter is a job of a task queue, its record says that it was cleared, so that no delivery of it runs.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token overrides keep
--   token: the token of the lease or waiter
--   overrides, keep: as in acquire
-- Returns one of these texts:
--   "ok": the lease or waiter was removed.
--   "gone": the lease or waiter had already ended.
local token, overrides, keep = unpack(ARGV)
local packed, us, _, _, _, _, _, holder = compact_state(string.sub(LEASES, 1, -7))
if packed then
  if holder ~= token or token == '' then return 'gone' end
  redis.call('DEL', NEVER)
  expand(packed)
end
local name, record = open(token, keep, us, overrides)
-- the composer inserts here: count, grant
local state, _, _, _, terms = string.match(record or '', RECORD)
local ends = redis.call('ZSCORE', LEASES, token)
if not (record or ends) or state == 'x' then return 'gone' end
local id = state == 'w' and string.match(terms, '"job":"(%x+)"') -- see Job in locks/jobs.py
if id then
  note_run(string.sub(LEASES, 1, -7), id, 'c', '-', '1', name.now + NOTED)
end
remove(name, token, state, terms, ends)
write_tombstone(name, token)
sweep(name, nil)
hand_off(name, nil)
finish(name)
return 'ok'
