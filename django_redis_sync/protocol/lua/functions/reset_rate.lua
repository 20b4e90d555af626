-- Remove an operator's rate. The rate of the last caller, if any, applies again at once, also to the waiters.
local function reset_rate(name)
  if not string.find(name.rate or '', ' op', 1, true) then return end
  redis.call('HDEL', INFO, '#rate')
  local callers = string.match(name.seen or '', ' (%d+/%d+)$')
  if callers then
    retry_write('HSET', INFO, '#rate', callers .. ' ' .. name.at)
  end
end
