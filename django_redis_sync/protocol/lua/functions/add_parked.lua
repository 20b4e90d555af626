-- Append parked waiters to `queue`, until it has `limit` waiters. `queue`: a list of tokens and tickets in turn.
-- Then replace the ticket of each waiter by the time when the waiter came. The two times differ for a waiter that was
-- parked, because it entered the queue with the ticket of another waiter.
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
