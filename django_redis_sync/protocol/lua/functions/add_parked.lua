-- Append parked waiters (those outside the queue) to `queue`, up to `limit` waiters in total. `queue`: a flat list of
-- tokens and tickets. Then replace the ticket of each waiter by its time of arrival. The two times differ if the
-- waiter was parked, because it then got the ticket of another waiter.
local function add_parked(queue, limit)
  local left = limit - #queue / 2
  for _, member in ipairs(left > 0 and redis.call('ZRANGE', PARKED, 0, left - 1) or {}) do
    queue[#queue + 1] = string.match(member, '%S+$')
    queue[#queue + 1] = ''
  end
  for i = 1, #queue, 2 do
    local arrival = string.match(redis.call('HGET', INFO, queue[i]) or '', '^w (%d+)')
    if arrival and arrival ~= '0' then queue[i + 1] = arrival end
  end
end
