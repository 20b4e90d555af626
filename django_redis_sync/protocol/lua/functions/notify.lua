-- Send the message of a handoff to `t`, which was granted a lease of `ms`. The new holder has to claim the lease within
-- CLAIM.
local function notify(name, t, channel, fence, ms)
  local message = fence .. ' ' .. name.at .. ' ' .. ms
  redis.call('ZADD', WAITERS, string.format(name.format, name.now + math.min(CLAIM, ms)), t)
  -- pcall, because the memory may be full, or an ACL may deny the channel. Without a message, the new holder gets the
  -- lease with its next heartbeat.
  redis.pcall('RPUSH', wake_key(t), message)
  redis.pcall('PEXPIREAT', wake_key(t), string.format(name.format, name.now + ms + GRACE))
  if channel ~= '-' then redis.pcall('PUBLISH', channel, t .. ' ' .. message) end
end
