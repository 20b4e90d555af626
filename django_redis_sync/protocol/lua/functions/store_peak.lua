-- Store the highest use of this minute, if `used` is higher.
local function store_peak(name, used)
  local peak = highest_use(name.stats, name.minute, name.peak or '', used)
  if peak == name.peak then return end
  redis.call('HSET', name.stats, name.minute .. ':p', string.match(peak, '%d+$'))
  name.peak = peak
  put(name, '#peak', peak)
end
