-- Append parked waiters to the rows of the queue, up to `limit` rows. Then put the time of arrival into each row,
-- because the ticket of a waiter that was parked is not the time of its arrival.
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
