-- Return the highest use in this minute as the text "<minute>:<permits>". The field '#peak' has the same format.
-- `used`: the permits in use now.
local function highest_use(stats, minute, peak, used)
  local this = minute .. ':'
  if used <= tonumber(string.match(peak, '^' .. this .. '(%d+)$') or 0) then return peak end
  return this .. math.max(used, tonumber(redis.call('HGET', stats, this .. 'p') or 0))
end
