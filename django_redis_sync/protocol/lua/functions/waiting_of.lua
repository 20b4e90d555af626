-- Return the number of all waiters of a name, both in the queue and parked (outside the queue).
local function waiting_of(name)
  local queued = redis.call('ZCARD', QUEUE)
  return name.shared and queued + redis.call('ZCARD', PARKED) or queued
end
