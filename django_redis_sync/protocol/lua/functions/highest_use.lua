-- Return the max number of permits in use at the same time during this minute, as the text "<minute>:<permits>".
-- `peak`: an earlier result, from any minute. `used`: permits in use now.
local function highest_use(stats, minute, peak, used)
  local this = minute .. ':'
  if used <= tonumber(string.match(peak, '^' .. this .. '(%d+)$') or 0) then return peak end
  return this .. math.max(used, tonumber(redis.call('HGET', stats, this .. 'p') or 0))
end
