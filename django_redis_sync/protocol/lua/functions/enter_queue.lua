-- Add the waiter `t` to the queue. `ticket`: the ticket of a waiter that left, or the present time if the queue is
-- empty. If `ticket` is false, `t` enters at the end, with a new ticket that is later than all others.
local function enter_queue(name, t, ticket)
  local last = not ticket and redis.call('ZREVRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  redis.call('ZADD', QUEUE, ticket or string.format(name.format, math.max(name.us, (last or 0) + 1)), t)
  if name.shared or not last then name.new_queue = true end
end
