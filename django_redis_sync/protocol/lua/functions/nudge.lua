-- Let the first waiter `t` ask again now, if it would ask later than the rate opens, because it came to the head of the
-- queue sooner than it could expect. The message is a grant that has already ended, so the waiter asks.
local function nudge(name, t, channel)
  local asks = tonumber(redis.call('ZSCORE', WAITERS, t) or 0) - PATIENCE
  if asks <= name.now + name.opens + NUDGE then return end
  local message = '0 ' .. name.at .. ' 0'
  if channel ~= '-' then
    redis.pcall('PUBLISH', channel, t .. ' ' .. message)
  elseif redis.call('EXISTS', wake_key(t)) == 0 then
    redis.pcall('RPUSH', wake_key(t), message)
    redis.pcall('PEXPIREAT', wake_key(t), string.format(name.format, name.now + ASLEEP))
  end
end
