-- Return the highest use of this minute in the form of '#peak', "<minute>:<permits>". `used`: permits in use now.
local function highest_use(stats, minute, peak, used)
  local this = minute .. ':'
  if used <= tonumber(string.match(peak, '^' .. this .. '(%d+)$') or 0) then return peak end
  return this .. math.max(used, tonumber(redis.call('HGET', stats, this .. 'p') or 0))
end
