-- overrides: return all overrides that operators have set. Remove pauses that have ended.
-- KEYS overrides
--   overrides: a hash. Its fields are "p:NAME" (a pause, see pause_ends), "l:NAME" (a limit), "xp:NAME", and "xl:NAME"
--     (the key of a policy is exempt from the policy's pause or limit).
-- Returns the fields and values of the hash, alternately
local all, time = redis.call('HGETALL', OVERRIDES), redis.call('TIME')
local found, now = {}, time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'p:' and pause_ends(all[i + 1]) <= now then
    redis.call('HDEL', OVERRIDES, all[i])
  else
    found[#found + 1], found[#found + 2] = all[i], all[i + 1]
  end
end
return found
