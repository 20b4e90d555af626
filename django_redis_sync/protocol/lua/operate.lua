-- operate: an operator's marks on a name. They last until taken back, across restarts with
-- persistence, and keep the name's keys from expiring.
-- KEYS leases queue waiters info wake stats never
-- ARGV token how value keep
--   token: empty; how: pause | resume | resize (value: the limit that overrides the callers') | reset
-- Returns ok
-- @include state
local me, reply
local how, field = ARGV[2], (ARGV[2] == 'pause' or ARGV[2] == 'resume') and '#paused' or '#limit'
if how == 'pause' or how == 'resize' then
  put(field, how == 'pause' and at or ARGV[3])
  latest = math.huge
else
  call('HDEL', INFO, field)
  recount = true
end
if field == '#paused' then paused = how == 'pause' else override = how == 'resize' and tonumber(ARGV[3]) end
-- @include sweep hand finish
return {'ok'}
