-- statistics: add the counts of a process to those of a policy, a template, or all names. Store the process's gauge.
-- If the reply is lost, the process repeats the call. The counts may then be added twice, which the statistics accept.
-- KEYS gauges sketch stats
--   gauges: the gauge of each process
--   sketch: durations, and rejections by name or key, per hour
--   stats: counts per minute
-- ARGV process entry life counts durations rejected rest keep peak
--   process: a random ID of the process
--   entry: the gauge (permits in use and waiters of the process) as JSON; empty for none
--   life: ms for which the gauge is valid
--   counts: JSON object that maps an event to its number
--   durations: JSON object that maps a range of ms to the number of events with such a duration
--   rejected: JSON object that maps a name, or a key of a policy, to its number of rejections
--   rest: no name or key that is left out of `rejected` has more rejections than this number
--   keep: minutes of history
--   peak: max permits of one name or key that were in use at the same time
-- Returns "ok"
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
  redis.call('HDEL', GAUGES, process)
else
  redis.call('HSET', GAUGES, process, whole(name, name.now + tonumber(life)) .. ' ' .. entry)
end
local stored = redis.call('HGETALL', GAUGES)
for i = 1, #stored, 2 do -- remove the gauges of dead processes
  if tonumber(string.match(stored[i + 1], '^%d+') or 0) <= name.now then redis.call('HDEL', GAUGES, stored[i]) end
end
redis.call('PEXPIRE', GAUGES, life)
count_top_keys(name, cjson.decode(durations), cjson.decode(rejected), tonumber(rest))
return 'ok'
