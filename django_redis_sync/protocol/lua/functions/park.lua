-- Park a waiter: it waits outside of the queue until it is called up.
local function park(name, share, arrival, t)
  redis.call('ZADD', PARKED, '0', parked_as(share, arrival, t))
  name.new_queue = true
end
