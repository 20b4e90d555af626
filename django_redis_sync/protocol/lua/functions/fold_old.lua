-- Move an old count to the field of a longer period. The count moves from "<minute>:<what>" to
-- "<minute>q:<what>", which is a quarter of an hour, and from there to "total:<what>". The count of a minute includes
-- a sum of ms (see `count`). Longer periods have a separate field "…:ms" for the sum. Peaks are not added up: a quarter
-- has the highest peak of its minutes, and the totals have no peak.
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
