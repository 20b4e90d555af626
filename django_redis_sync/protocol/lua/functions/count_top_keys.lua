-- Add counts to fields of the present hour: of durations by their range ("<hour>:d:<range>"), and of rejections by key
-- ("<hour>:k:<key>"). At most TOP_KEYS keys stay, by the algorithm of Misra and Gries: if there are more, subtract the
-- highest count beyond the first TOP_KEYS from all counts, remove keys without a count, and add the subtracted number
-- to "<hour>:off". So a count is never too high, and too low by at most "<hour>:off". `rest`: see statistics.
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
