-- Does a write again that was denied because the memory is full. The server denies a script's first
-- write when it may add something, and no write after one that can't: DEL, of a key that never exists.
-- For the callers that hold or wait already: a newcomer's first write stays denied.
local function insist(command, key, ...)
  redis.call('DEL', NEVER)
  return redis.call(command, key, ...)
end
