-- Append a waiter to the queue and return its rank. Two waiters of one microsecond get different tickets.
local function enqueue(name, token, lease, terms, waiting)
  local last = waiting > 0 and redis.call('ZREVRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  redis.call('ZADD', QUEUE, string.format(name.format, math.max(name.us, (last or 0) + 1)), token)
  if waiting == 0 then name.new_queue = true end
  put(name, token, 'w 0 ' .. lease .. ' ' .. terms)
  if name.asker ~= '-' then
    heartbeat(name, name.asker)
  end
  return waiting
end
