-- Wake `t`, which was handed a lease of `ms`. It has to claim the lease within CLAIM.
local function notify(name, t, channel, fence, ms)
  local message = fence .. ' ' .. name.at .. ' ' .. ms
  redis.call('ZADD', WAITERS, string.format(name.format, name.now + math.min(CLAIM, ms)), t)
  -- pcall: with the memory full, or a channel that an ACL denies, no message is sent, and the new
  -- holder learns of its grant when it asks again.
  redis.pcall('RPUSH', wake_key(t), message)
  redis.pcall('PEXPIREAT', wake_key(t), string.format(name.format, name.now + ms + GRACE))
  if channel ~= '-' then redis.pcall('PUBLISH', channel, t .. ' ' .. message) end
end
