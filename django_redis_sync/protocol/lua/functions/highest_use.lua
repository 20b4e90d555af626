-- Return the highest use in this minute as text, "<minute>:<permits>", which the field '#peak' has, too. `used`:
-- permits in use now.
local function highest_use(stats, minute, peak, used)
  local this = minute .. ':'
  if used <= tonumber(string.match(peak, '^' .. this .. '(%d+)$') or 0) then return peak end
  return this .. math.max(used, tonumber(redis.call('HGET', stats, this .. 'p') or 0))
end
