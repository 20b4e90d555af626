-- Remembers the highest use of a minute.
local function note_peak(name, used)
  local peak = highest(name.peak or '', name.minute, used)
  if peak == name.peak then return end
  redis.call('HSET', STATS, name.minute .. ':p', string.match(peak, '%d+$'))
  name.peak = peak
  put(name, '#peak', peak)
end
