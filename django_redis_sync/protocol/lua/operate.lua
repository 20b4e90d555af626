-- operate: an operator's marks on a name. They last until taken back, or until a pause ends by
-- itself, across restarts with persistence, and keep the name's keys from expiring as long.
-- KEYS leases never
-- ARGV token how value mark keep
--   token: empty; how: pause (value: as pause_ends takes it; empty: since now) | resume |
--   resize (value: the limit that overrides the callers') | reset |
--   poke (grants what is free, after the mark of the policy changed)
-- Returns ok
local token, how, value, mark, keep = unpack(ARGV)
local packed, us = compact_state(string.sub(LEASES, 1, -7))
if packed and packed ~= '' then
  redis.call('DEL', NEVER)
  expand(packed)
end
local name = open(token, keep, us)
-- make count grant remove
if how == 'pause' and value == '' then value = name.at end
if how == 'pause' or how == 'resize' then -- before `finish`, which reads how long they last
  retry_write('HSET', INFO, how == 'pause' and '#paused' or '#limit', value)
elseif how ~= 'poke' then
  redis.call('HDEL', INFO, how == 'resume' and '#paused' or '#limit')
end
name.recount = how ~= 'poke'
if how == 'pause' or how == 'resume' then name.paused = how == 'pause' and value end
if how == 'resize' or how == 'reset' then name.override = how == 'resize' and tonumber(value) end
if mark ~= '-' then
  apply_override(name, mark)
end
sweep(name, nil)
hand_off(name, nil)
finish(name)
return 'ok'
