-- operate: set or remove an operator's override of a name, or begin a cool-down. An override is a pause, a limit, or a rate.
-- A pause lasts until its end or "resume". A limit lasts until "reset". The keys of the name don't expire before that.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token how value overrides keep
--   token: always empty
--   how: one of these words:
--     "pause": set the pause `value` (see pause_ends). If `value` is empty, the pause begins now, and has no end.
--     "cool": begin a cool-down (see cool_ends), unless one ends later. `value`: its ms, and the label of the caller
--     "resume": remove the pause, and end the cool-down
--     "resize": set the limit `value`, which replaces the limits of the callers. If `value` is "PERMITS/MS", set the rate.
--     "reset": remove this limit, and this rate. The rate of the last caller applies again.
--     "poke": change no override, but grant free permits, because an override of the policy has changed
--   overrides, keep: as in acquire
-- Returns "ok"
local token, how, value, overrides, keep = unpack(ARGV)
local packed, us = compact_state(string.sub(LEASES, 1, -7))
if packed and packed ~= '' then
  redis.call('DEL', NEVER)
  expand(packed)
end
local name, field = open(token, keep, us, '-'), '#paused'
-- the composer inserts here: count, grant, remove
if how == 'pause' and value == '' then value = name.at end
if how == 'resize' then field = string.find(value, '/', 1, true) and '#rate' or '#limit' end
if field == '#rate' then value = value .. ' op' end
if how == 'cool' then
  local ms, label = string.match(value, '^(%d+) (.*)$')
  local ends = whole(name, name.now + tonumber(ms))
  field, value = '#cool', name.at .. ' ' .. ends .. ' ' .. label
  local _, former = string.match(redis.call('HGET', INFO, '#cool') or '', '^(%d+) (%d+)')
  if tonumber(former or 0) > tonumber(ends) then how = 'poke' end
end
if how == 'resume' then
  redis.call('HDEL', INFO, '#paused', '#cool')
elseif how == 'reset' then
  redis.call('HDEL', INFO, '#limit')
  reset_rate(name)
elseif how ~= 'poke' then
  retry_write('HSET', INFO, field, value)
end
name = open(token, keep, name.us, overrides) -- with the new override
name.recount = how ~= 'poke'
sweep(name, nil)
hand_off(name, nil)
finish(name)
return 'ok'
