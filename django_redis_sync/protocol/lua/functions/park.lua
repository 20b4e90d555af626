-- Put a waiter among those of its share that are not in the queue.
local function park(name, share, arrival, t)
  redis.call('ZADD', PARKED, '0', parked_as(share, arrival, t))
  name.new_queue = true
end
