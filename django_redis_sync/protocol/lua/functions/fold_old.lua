-- If a counter is old, move its value to the counter of a longer period. `field`: the hash field of the counter.
-- `minute`: the present minute. `fine`, `keep`: ages in minutes. There are three kinds of counters:
-- - "<minute>:<what>" counts the events of a minute. After `fine` minutes, its value moves to its quarter of an hour.
-- - "<minute>q:<what>" counts the events of the quarter of an hour that begins at <minute>.
-- - "total:<what>" counts all earlier events. After `keep` minutes, the values of the other counters move there.
-- If the event has a duration, the counter of a minute also contains the sum of ms (see count). Longer periods have
-- this sum in a second field, which ends with ":ms".
-- The counter "p" is a peak, not a sum. A quarter of an hour has the highest peak of its minutes. The totals have
-- none.
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
