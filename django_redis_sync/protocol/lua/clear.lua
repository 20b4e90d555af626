-- clear: an operator takes away one lease or one place in the queue; it can't come back.
-- KEYS leases queue waiters info wake stats never
-- ARGV token keep
-- Returns ok | gone (nothing there: it ended by itself)
-- @include state record stats finish sweep grant hand
if not (record or call('ZSCORE', LEASES, token)) or parse(record).state == 'x' then return {'gone'} end
drop(token)
bury(token)
sweep()
hand()
return finish({'ok'})
