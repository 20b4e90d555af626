-- Repeat a write that was denied because the memory is full. The server denies a write that may need memory only if the
-- script has not written before, and DEL counts as a write even for a key that never exists. Call this function only
-- for tokens of holders and waiters, so that a newcomer's first write stays denied.
local function retry_write(command, key, ...)
  redis.call('DEL', NEVER)
  return redis.call(command, key, ...)
end
