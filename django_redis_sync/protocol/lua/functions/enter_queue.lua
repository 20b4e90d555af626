-- Add the waiter `t` to the queue, which is sorted by ticket. A ticket is a time in microseconds.
-- `ticket`: the ticket for `t`. If it is false, `t` enters at the end of the queue, with a new ticket.
local function enter_queue(name, t, ticket)
  local last = not ticket and redis.call('ZREVRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  redis.call('ZADD', QUEUE, ticket or string.format(name.format, math.max(name.us, (last or 0) + 1)), t)
  if name.shared or not last then
    name.new_queue = true
  else
    name.joined = true
  end
end
