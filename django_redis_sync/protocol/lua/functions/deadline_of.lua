-- Return the time when the waiter `t` counts as dead, the sooner of its own deadline and that of its event loop.
local function deadline_of(name, t, channel)
  local ends = tonumber(redis.call('ZSCORE', WAITERS, t) or 0)
  if channel == '-' or channel == name.asker then return ends end
  return math.min(ends, tonumber(redis.call('ZSCORE', WAITERS, channel) or 0))
end
