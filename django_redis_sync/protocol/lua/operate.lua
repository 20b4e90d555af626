-- operate: an operator's marks on a name. They last until taken back, across restarts with
-- persistence, and keep the name's keys from expiring.
-- KEYS leases never
-- ARGV token how value mark keep
--   token: empty; how: pause | resume | resize (value: the limit that overrides the callers') | reset |
--   poke (lets in who may come in, after the mark of its policy changed)
-- Returns ok
local token, how, value, mark, keep = unpack(ARGV)
local packed, us = short_state(string.sub(LEASES, 1, -7))
if packed and packed ~= '' then
  redis.call('DEL', NEVER)
  spill(packed)
end
local name = open(token, keep, us)
if how == 'pause' or how == 'resize' then
  put(name, how == 'pause' and '#paused' or '#limit', how == 'pause' and name.at or value)
  name.latest = math.huge
elseif how ~= 'poke' then
  redis.call('HDEL', INFO, how == 'resume' and '#paused' or '#limit')
  name.recount = true
end
if how == 'pause' or how == 'resume' then name.paused = how == 'pause' end
if how == 'resize' or how == 'reset' then name.override = how == 'resize' and tonumber(value) end
if mark ~= '-' then heed(name, mark) end
sweep(name, nil)
hand_over(name, nil)
finish(name)
return 'ok'
