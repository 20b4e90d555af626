-- Repeat a write that Redis denied because the memory is full. After a script has written, Redis no longer denies its
-- writes. So first delete NEVER, a key that never exists. This counts as a write, and is always allowed.
-- Call this function only for holders and waiters. If the memory is full, a newcomer must be denied.
local function retry_write(command, key, ...)
  redis.call('DEL', NEVER)
  return redis.call(command, key, ...)
end
