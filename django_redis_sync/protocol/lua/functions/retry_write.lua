-- Repeat a write that was denied because the memory is full. The server denies the first write of a script
-- if it may need memory, and no write after one that never does: DEL of a key that never exists. Only for
-- tokens that hold or wait already: the first write of a newcomer stays denied.
local function retry_write(command, key, ...)
  redis.call('DEL', NEVER)
  return redis.call(command, key, ...)
end
