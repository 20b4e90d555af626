-- Notify `t`, which was granted a lease of `ms` by a handoff, and which has to claim it within CLAIM.
local function notify(name, t, channel, fence, ms)
  local message = fence .. ' ' .. name.at .. ' ' .. ms
  redis.call('ZADD', WAITERS, string.format(name.format, name.now + math.min(CLAIM, ms)), t)
  -- pcall: if the memory is full, or an ACL denies the channel, no message is sent. The new holder
  -- then gets the lease with its next heartbeat.
  redis.pcall('RPUSH', wake_key(t), message)
  redis.pcall('PEXPIREAT', wake_key(t), string.format(name.format, name.now + ms + GRACE))
  if channel ~= '-' then redis.pcall('PUBLISH', channel, t .. ' ' .. message) end
end
