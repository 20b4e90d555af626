-- The highest use of a minute, as '#peak' remembers it ("<minute>:<permits>"), with so many in use now.
local function highest(stats, minute, peak, used)
  local this = minute .. ':'
  if used <= tonumber(string.match(peak, '^' .. this .. '(%d+)$') or 0) then return peak end
  return this .. math.max(used, tonumber(redis.call('HGET', stats, this .. 'p') or 0))
end
