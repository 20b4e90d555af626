-- Add counts to the fields of the present hour. A field "<hour>:d:<range>" counts durations in a range of ms. A field
-- "<hour>:k:<key>" counts the rejections of a key. For the arguments, see the script `statistics`.
-- Keep at most TOP_KEYS keys in an hour (algorithm of Misra and Gries). If there are more keys, sort them by count,
-- highest first. Subtract the count of key number TOP_KEYS + 1 from all counts, and remove the keys that have no count
-- left. Add the subtracted number to "<hour>:off".
-- So the count of a key is never too high. It is too low by at most "<hour>:off".
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
  local all, fields, counts = redis.call('HGETALL', SKETCH), {}, {}
  for i = 1, #all, 2 do
    local at, what = string.match(all[i], '^(%d+):(%a)')
    if at and tonumber(at) < hour - 1 then
      redis.call('HDEL', SKETCH, all[i])
    elseif tonumber(at) == hour and what == 'k' then
      fields[#fields + 1], counts[#counts + 1] = all[i], tonumber(all[i + 1])
    end
  end
  table.sort(counts)
  local cut = counts[#counts - TOP_KEYS]
  for _, field in ipairs(cut and fields or {}) do
    if redis.call('HINCRBY', SKETCH, field, -cut) <= 0 then redis.call('HDEL', SKETCH, field) end
  end
  if cut then redis.call('HINCRBY', SKETCH, this .. 'off', cut) end
  redis.call('PEXPIRE', SKETCH, 3 * 3600000)
end
