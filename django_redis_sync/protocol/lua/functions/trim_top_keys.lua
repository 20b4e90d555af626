-- Keep the TOP_KEYS most frequent keys of an hour (algorithm of Misra and Gries): subtract the count of the most frequent
-- key beyond them from all, and add it to "off". No count is too high, and none is too low by more than "off".
local function trim_top_keys(this)
  local all, fields, counts = redis.call('HGETALL', SKETCH), {}, {}
  for i = 1, #all, 2 do
    if string.find(all[i], this .. 'k:', 1, true) == 1 then
      fields[#fields + 1] = all[i]
      counts[#counts + 1] = tonumber(all[i + 1])
    end
  end
  if #fields <= TOP_KEYS then return end
  table.sort(counts)
  local cut = counts[#counts - TOP_KEYS]
  for _, field in ipairs(fields) do
    if redis.call('HINCRBY', SKETCH, field, -cut) <= 0 then redis.call('HDEL', SKETCH, field) end
  end
  redis.call('HINCRBY', SKETCH, this .. 'off', cut)
end
