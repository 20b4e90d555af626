-- Remembers the highest use of a minute.
local function note_peak(name, used)
  local peak = highest(name.stats, name.minute, name.peak or '', used)
  if peak == name.peak then return end
  redis.call('HSET', name.stats, name.minute .. ':p', string.match(peak, '%d+$'))
  name.peak = peak
  put(name, '#peak', peak)
end
