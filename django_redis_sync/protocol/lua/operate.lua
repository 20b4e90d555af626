-- operate: set or remove an operator's override of a name. An override is a pause or a limit. A pause lasts until its
-- end, or until it is resumed. A limit lasts until it is reset. The keys of the name don't expire before the override.
-- KEYS leases never
-- ARGV token how value mark keep
--   token: always empty
--   how: one of these words:
--     pause: set a pause. value: see pause_ends; empty for a pause from now on, without an end
--     resume: remove the pause
--     resize: set a limit, which replaces the limits of the callers. value: the limit
--     reset: remove this limit
--     poke: change no override, and only grant free permits, because an override of the policy has changed
--   mark: the overrides of the policy, see apply_override; "-" for none
--   keep: minutes of history
-- Returns ok
local token, how, value, mark, keep = unpack(ARGV)
local packed, us = compact_state(string.sub(LEASES, 1, -7))
if packed and packed ~= '' then
  redis.call('DEL', NEVER)
  expand(packed)
end
local name = open(token, keep, us, '-')
-- insert here the functions: count, grant, remove
if how == 'pause' and value == '' then value = name.at end
if how == 'pause' or how == 'resize' then -- write at once, because `finish` reads the end of the override
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
