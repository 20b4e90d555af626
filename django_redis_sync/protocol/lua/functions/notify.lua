-- Send the wake-up message to the waiter `t`, which was granted a lease of `ms`. If the waiter does not claim the
-- lease within CLAIM, it loses the lease. It claims it as it pops the message (see remove_late), or by its next request
-- (see claim). The `deadline` of a waiter in sync code also serves for the claim, unless it is too near or too far.
local function notify(name, t, channel, fence, ms, deadline)
  local message = fence .. ' ' .. name.at .. ' ' .. ms
  local left = deadline - name.now
  if channel ~= '-' or left < PATIENCE or left > CLAIM then
    redis.call('ZADD', WAITERS, string.format(name.format, name.now + math.min(CLAIM, ms)), t)
  end
  -- pcall, because the memory may be full, or an ACL may deny the channel. If no message arrives, the waiter gets the
  -- lease in the reply to its next heartbeat.
  redis.pcall('RPUSH', wake_key(t), message)
  redis.pcall('PEXPIREAT', wake_key(t), string.format(name.format, name.now + ms + GRACE))
  if channel ~= '-' then redis.pcall('PUBLISH', channel, t .. ' ' .. message) end
end
