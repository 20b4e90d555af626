-- Return the highest use of a minute, as '#peak' remembers it ("<minute>:<permits>"), now that `used` permits are in use.
local function highest_use(stats, minute, peak, used)
  local this = minute .. ':'
  if used <= tonumber(string.match(peak, '^' .. this .. '(%d+)$') or 0) then return peak end
  return this .. math.max(used, tonumber(redis.call('HGET', stats, this .. 'p') or 0))
end
