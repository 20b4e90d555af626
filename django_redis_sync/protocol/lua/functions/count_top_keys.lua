-- Add durations per hour and bucket ("<hour>:d:<bucket>"), and rejections per hour of the most rejected keys
-- ("<hour>:k:<key>"). "<hour>:off" is the most that is missing from the count of any key.
local function count_top_keys(name, durations, rejected, rest)
  local hour = math.floor(name.minute / 60)
  local this = hour .. ':'
  for bucket, n in pairs(durations) do
    redis.call('HINCRBY', SKETCH, this .. 'd:' .. bucket, n)
  end
  for key, n in pairs(rejected) do
    redis.call('HINCRBY', SKETCH, this .. 'k:' .. key, n)
  end
  if rest > 0 then redis.call('HINCRBY', SKETCH, this .. 'off', rest) end
  if tonumber(redis.call('HGET', SKETCH, 'hour') or hour) < hour then
    remove_hours(hour - 1)
  end
  redis.call('HSET', SKETCH, 'hour', hour)
  if next(rejected) then
    trim_top_keys(this)
  end
  redis.call('PEXPIRE', SKETCH, 3 * 3600000)
end
