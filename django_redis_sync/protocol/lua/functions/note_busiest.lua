-- By the hour: how long things took, in buckets ("<hour>:d:<bucket>"), and which keys were refused most
-- ("<hour>:k:<key>"). "<hour>:off" bounds what is missing of any key.
local function note_busiest(name, durations, refused, rest)
  local hour = math.floor(name.minute / 60)
  local this = hour .. ':'
  for bucket, n in pairs(durations) do redis.call('HINCRBY', SKETCH, this .. 'd:' .. bucket, n) end
  for key, n in pairs(refused) do redis.call('HINCRBY', SKETCH, this .. 'k:' .. key, n) end
  if rest > 0 then redis.call('HINCRBY', SKETCH, this .. 'off', rest) end
  if tonumber(redis.call('HGET', SKETCH, 'hour') or hour) < hour then
    forget_hours(hour - 1)
  end
  redis.call('HSET', SKETCH, 'hour', hour)
  if next(refused) then
    thin_out(this)
  end
  redis.call('PEXPIRE', SKETCH, 3 * 3600000)
end
