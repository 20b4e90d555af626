-- Put a waiter of a share into the queue: at the place of a waiter that left (`ticket`), else at the end.
local function enter_queue(name, t, ticket)
  if not ticket then
    local last = redis.call('ZREVRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
    ticket = string.format(name.format, math.max(name.us, (last or 0) + 1))
  end
  redis.call('ZADD', QUEUE, ticket, t)
  name.new_queue = true
end
