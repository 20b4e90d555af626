-- tally: what a process counted of a group of names since it last wrote, and its share of what is in
-- use. Tried again after a lost answer it may count twice: sums may err, leases may not.
-- KEYS shares sketch stats
-- ARGV process entry life counts durations refused rest keep
--   process: a random name; entry: what it says of itself, empty for nothing; life: ms for which
--   that is valid; counts, durations, refused: JSON objects of numbers as text, by what, by bucket and
--   by key; rest: what a key that is not in refused may have had at the most; keep: minutes of history
-- Returns ok
local process, entry, life, counts, durations, refused, rest, keep = unpack(ARGV)
local name = reckon(keep, STATS)
for what, n in pairs(cjson.decode(counts)) do
  redis.call('HINCRBY', name.stats, name.minute .. ':' .. what, n)
end
if redis.call('EXISTS', STATS) == 1 then tidy(name) end
note_share(name, process, entry, tonumber(life))
note_busiest(name, cjson.decode(durations), cjson.decode(refused), tonumber(rest))
return 'ok'
