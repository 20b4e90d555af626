-- Update the share of the token `t`, which is about to be removed. `ends`: the end of the lease of `t`, or false if
-- `t` is a waiter. `ticket`: the ticket of `t` in the queue, or false if `t` is not in the queue.
-- If the share then has no waiter in the queue, move its next parked waiter to the queue (see queue_next_of_share),
-- with the ticket of `t`. If `ticket` is false, that waiter enters at the end of the queue.
local function leave_share(name, t, terms, ends, ticket)
  local _, share = share_of(terms or '')
  if not share then return end
  local held, first = share_use(name, share)
  if ends then
    held = math.max(0, held - weight(tonumber(string.match(terms, '^%d+'))))
  end
  if first == t then
    first = ''
  elseif not ends then
    local arrival = string.match(redis.call('HGET', INFO, t) or '', '^w (%d+)')
    redis.call('ZREM', PARKED, parked_as(share, arrival or 0, t))
  end
  if first == '' then
    first = queue_next_of_share(name, share, held, ticket)
  end
  store_share(name, share, held, first)
end
