-- Return when the waiter `t` counts as dead: at its own deadline or that of its event loop, whichever is sooner.
local function deadline_of(name, t, channel)
  local ends = tonumber(redis.call('ZSCORE', WAITERS, t) or 0)
  if channel == '-' or channel == name.asker then return ends end
  return math.min(ends, tonumber(redis.call('ZSCORE', WAITERS, channel) or 0))
end
