-- tally: add what a process counted in a group of names since its last write, and its gauge of what is
-- in use. Repeated after a lost answer it may count twice: statistics may err, leases may not.
-- KEYS shares sketch stats
-- ARGV process entry life counts durations refused rest keep peak
--   process: a random name; entry: its gauge, empty for none; life: ms for which
--   that is valid; counts, durations, refused: JSON objects of numbers as text, by what, by bucket and
--   by key; rest: the most rejections that a key outside of refused may have had; keep: minutes of history;
--   peak: the most permits of a single key that were in use at once
-- Returns ok
local process, entry, life, counts, durations, refused, rest, keep, peak = unpack(ARGV)
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
count_top_keys(name, cjson.decode(durations), cjson.decode(refused), tonumber(rest))
return 'ok'
