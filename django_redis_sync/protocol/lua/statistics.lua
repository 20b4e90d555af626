-- statistics: add the counts of a process for a group of names, and store how many permits it holds. A repetition
-- after a lost reply may count twice: the statistics accept that error.
-- KEYS shares sketch stats
-- ARGV process entry life counts durations rejected rest keep peak
--   process: a random name; entry: its gauge, empty for none; life: ms until the gauge expires
--   counts, durations, rejected: JSON objects of numbers as text, by event, by bucket, and by key
--   rest: the most rejections that a key outside of `rejected` may have had; keep: minutes of history
--   peak: the most permits of one key that were in use at the same time
-- Returns ok
local process, entry, life, counts, durations, rejected, rest, keep, peak = unpack(ARGV)
local name = clock_only(keep, STATS)
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
store_gauge(name, process, entry, tonumber(life))
count_top_keys(name, cjson.decode(durations), cjson.decode(rejected), tonumber(rest))
return 'ok'
