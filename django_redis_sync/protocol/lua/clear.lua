-- clear: an operator takes away one lease or one place in the queue; it can't come back.
-- KEYS leases queue waiters info wake stats never
-- ARGV token keep
-- Returns ok | gone (nothing there: it ended by itself)
-- @include state
local t, ends, me, reply = token, call('ZSCORE', LEASES, token), nil, nil
local state, _, _, _, permits = string.match(record or '', RECORD)
if not (record or ends) or state == 'x' then return {'gone'} end
-- @include removed buried sweep hand finish
return {'ok'}
