-- clear: an operator takes away one lease or one place in the queue; it can't come back.
-- KEYS leases never
-- ARGV token mark keep
-- Returns ok | gone (nothing there: it ended by itself)
local token, mark, keep = unpack(ARGV)
local packed, us, _, _, _, _, _, holder = short_state(string.sub(LEASES, 1, -7))
if packed then
  if holder ~= token or token == '' then return 'gone' end
  redis.call('DEL', NEVER)
  spill(packed)
end
local name, record = open(token, keep, us)
if mark ~= '-' then heed(name, mark) end
local state, _, _, _, terms = string.match(record or '', RECORD)
local ends = redis.call('ZSCORE', LEASES, token)
if not (record or ends) or state == 'x' then return 'gone' end
remove(name, token, state, terms, ends)
mark_dead(name, token)
sweep(name, nil)
hand_over(name, nil)
finish(name)
return 'ok'
