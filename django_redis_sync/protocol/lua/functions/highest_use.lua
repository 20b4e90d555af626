-- Return the highest number of permits that were in use at once in this minute, as the text "<minute>:<permits>".
-- `used`: the number of permits in use now. `peak`: an earlier result, from any minute.
local function highest_use(stats, minute, peak, used)
  local this = minute .. ':'
  if used <= tonumber(string.match(peak, '^' .. this .. '(%d+)$') or 0) then return peak end
  return this .. math.max(used, tonumber(redis.call('HGET', stats, this .. 'p') or 0))
end
