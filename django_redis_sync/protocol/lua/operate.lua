-- operate: an operator's marks on a name. They last until taken back, across restarts with
-- persistence, and keep the name's keys from expiring.
-- KEYS leases queue waiters info wake stats never
-- ARGV token how value keep
--   token: empty; how: pause | resume | resize (value: the limit that overrides the callers') | reset
-- Returns ok
local token, how, value, keep = unpack(ARGV)
local name = open(token, keep)
local field = (how == 'pause' or how == 'resume') and '#paused' or '#limit'
if how == 'pause' or how == 'resize' then
  put(name, field, how == 'pause' and name.at or value)
  name.latest = math.huge
else
  redis.call('HDEL', INFO, field)
  name.recount = true
end
if field == '#paused' then name.paused = how == 'pause'
else name.override = how == 'resize' and tonumber(value) end
sweep(name, nil)
hand_over(name, nil)
finish(name)
return {'ok'}
