-- Return the time from which the waiter `t` counts as dead, in server ms. This is the earlier of two deadlines: that
-- of the waiter, and that of its event loop. `channel`: the channel of the event loop, or '-' in sync code.
local function deadline_of(name, t, channel)
  local ends = tonumber(redis.call('ZSCORE', WAITERS, t) or 0)
  if channel == '-' or channel == name.asker then return ends end
  return math.min(ends, tonumber(redis.call('ZSCORE', WAITERS, channel) or 0))
end
