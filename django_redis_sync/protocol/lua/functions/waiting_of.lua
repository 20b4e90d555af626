-- Return the number of waiters of a name, in the queue and parked.
local function waiting_of(name)
  local queued = redis.call('ZCARD', QUEUE)
  return name.shared and queued + redis.call('ZCARD', PARKED) or queued
end
