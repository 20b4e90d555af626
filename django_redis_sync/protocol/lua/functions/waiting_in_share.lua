-- Return the number of waiters of a share: the parked ones (outside the queue), and the one in the queue. `first`: the
-- token of the waiter in the queue, or '' if there is none.
local function waiting_in_share(share, first)
  return redis.call('ZLEXCOUNT', PARKED, '[' .. share .. ' ', '(' .. share .. '!') + (first == '' and 0 or 1)
end
