-- Wakes `t`, which was handed its lease of `ms`. It has until CLAIM to show that it is there.
local function tell(name, t, channel, fence, ms)
  local element = fence .. ' ' .. name.at .. ' ' .. ms
  redis.call('ZADD', WAITERS, string.format(name.format, name.now + math.min(CLAIM, ms)), t)
  -- pcall: with the memory full, or a channel that an ACL denies, no wake-up is sent, and the winner
  -- learns of its grant when it asks again.
  redis.pcall('RPUSH', wake_list(t), element)
  redis.pcall('PEXPIREAT', wake_list(t), string.format(name.format, name.now + ms + GRACE))
  if channel ~= '-' then redis.pcall('PUBLISH', channel, t .. ' ' .. element) end
end
