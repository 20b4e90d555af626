-- operate: set or remove an operator's override of a name. An override is a pause or a limit.
-- A pause lasts until its end or "resume". A limit lasts until "reset". The keys of the name don't expire before that.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token how value overrides keep
--   token: always empty
--   how: one of these words:
--     "pause": set the pause `value` (see pause_ends). If `value` is empty, the pause begins now, and has no end.
--     "resume": remove the pause
--     "resize": set the limit `value`, which replaces the limits of the callers
--     "reset": remove this limit
--     "poke": change no override, but grant free permits, because an override of the policy has changed
--   overrides, keep: as in acquire
-- Returns "ok"
local token, how, value, overrides, keep = unpack(ARGV)
local packed, us = compact_state(string.sub(LEASES, 1, -7))
if packed and packed ~= '' then
  redis.call('DEL', NEVER)
  expand(packed)
end
local name = open(token, keep, us, '-')
-- the composer inserts here: count, grant, remove
if how == 'pause' and value == '' then value = name.at end
if how == 'pause' or how == 'resize' then -- write the override now, because `finish` reads it
  retry_write('HSET', INFO, how == 'pause' and '#paused' or '#limit', value)
elseif how ~= 'poke' then
  redis.call('HDEL', INFO, how == 'resume' and '#paused' or '#limit')
end
name.recount = how ~= 'poke'
if how == 'pause' or how == 'resume' then name.paused = how == 'pause' and value end
if how == 'resize' or how == 'reset' then name.override = how == 'resize' and tonumber(value) end
if overrides ~= '-' then
  apply_override(name, overrides)
end
sweep(name, nil)
hand_off(name, nil)
finish(name)
return 'ok'
