-- Repeat a write that was denied because the memory is full. Once a script has written, the server no longer denies its
-- writes. So this function first deletes a key that never exists, which counts as a write. Call this function only for
-- tokens of holders and waiters. A newcomer must be denied.
local function retry_write(command, key, ...)
  redis.call('DEL', NEVER)
  return redis.call(command, key, ...)
end
