-- If a counter is old, move it to the counter of a longer period. `field`: the counter's field. `minute`: the present
-- minute. `fine`, `keep`: numbers of minutes. There are counters for three periods:
-- - "<minute>:<what>" is for a minute. After `fine` minutes, the counter moves to its quarter of an hour.
-- - "<minute>q:<what>" is for the quarter of an hour that begins at this minute.
-- - "total:<what>" is for the time before. After `keep` minutes, the other counters move there.
-- If an event has a duration, its counter of a minute also contains a sum of ms (see `count`). In a longer period, the
-- sum is in a field of its own, which ends with ":ms".
-- The counter "p" is a peak. Peaks are not added up: a quarter has the highest peak of its minutes, and the totals have
-- no peak.
local function fold_old(name, field, minute, fine, keep)
  local at, quarter, what = string.match(field, '^(%d+)(q?):(.+)$')
  local age = at and minute - at or 0
  if age <= (quarter == 'q' and keep or fine) then return end
  local sum = tonumber(redis.call('HGET', name.stats, field) or 0)
  if sum == 0 then return end
  redis.call('HDEL', name.stats, field)
  local to = 'total:'
  if quarter == '' and age <= keep then to = string.format('%.0f', at - at % QUARTER) .. 'q:' end
  if what == 'p' then
    if to ~= 'total:' and sum > tonumber(redis.call('HGET', name.stats, to .. 'p') or 0) then
      redis.call('HSET', name.stats, to .. 'p', sum)
    end
    return
  end
  if quarter == '' and (what == 'w' or what == 'r') then
    redis.call('HINCRBY', name.stats, to .. what .. ':ms', sum % PAIR)
    sum = math.floor(sum / PAIR)
  end
  redis.call('HINCRBY', name.stats, to .. what, sum)
end
