-- marks: return all overrides that operators have set on policies. Remove pauses that have ended.
-- KEYS marks
--   marks: a hash. A field "p:NAME" has a pause (see pause_ends).
-- Returns the fields and values of the hash, alternately
local all, time = redis.call('HGETALL', MARKS), redis.call('TIME')
local found, now = {}, time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'p:' and pause_ends(all[i + 1]) <= now then
    redis.call('HDEL', MARKS, all[i])
  else
    found[#found + 1], found[#found + 2] = all[i], all[i + 1]
  end
end
return found
