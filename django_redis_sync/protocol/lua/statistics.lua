-- statistics: add the counts of a process for a group of names, and store how many permits it holds. If the
-- reply is lost, the process repeats the call, and the counts may be added twice. The statistics accept this error.
-- KEYS shares sketch stats
-- ARGV process entry life counts durations rejected rest keep peak
--   process: a random name of the process
--   entry: the number of permits that the process holds now; empty if it holds none
--   life: ms until the entry expires, unless the process repeats the call
--   counts, durations, rejected: JSON objects with numbers as text. The keys of `counts` are events, those of
--     `durations` are ranges of ms, and those of `rejected` are keys of the policy
--   rest: each key that is not in `rejected` had at most this number of rejections
--   keep: minutes of history
--   peak: the max number of permits of one key that were in use at the same time
-- Returns ok
local process, entry, life, counts, durations, rejected, rest, keep, peak = unpack(ARGV)
local time = redis.call('TIME')
local name = compact_fields(time[1] * 1000000 + time[2], keep, STATS)
name.minute = string.format('%.0f', (name.now - name.now % 60000) / 60000)
for what, n in pairs(cjson.decode(counts)) do
  redis.call('HINCRBY', name.stats, name.minute .. ':' .. what, n)
end
local field = name.minute .. ':p'
if tonumber(peak) > tonumber(redis.call('HGET', name.stats, field) or 0) then
  redis.call('HSET', name.stats, field, peak)
end
if redis.call('EXISTS', STATS) == 1 then
  tidy(name)
end
if entry == '' then
  redis.call('HDEL', SHARES, process)
else
  redis.call('HSET', SHARES, process, whole(name, name.now + tonumber(life)) .. ' ' .. entry)
end
local gauges = redis.call('HGETALL', SHARES)
for i = 1, #gauges, 2 do -- remove the entries of dead processes
  if tonumber(string.match(gauges[i + 1], '^%d+') or 0) <= name.now then redis.call('HDEL', SHARES, gauges[i]) end
end
redis.call('PEXPIRE', SHARES, life)
count_top_keys(name, cjson.decode(durations), cjson.decode(rejected), tonumber(rest))
return 'ok'
