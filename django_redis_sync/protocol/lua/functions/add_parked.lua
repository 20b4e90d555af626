-- Append parked waiters to `queue`, a list of tokens and tickets, until it has `limit` waiters. Then replace each
-- ticket by the time of arrival, because the ticket of a waiter that was parked is not that time.
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
