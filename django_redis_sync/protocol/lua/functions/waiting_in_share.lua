-- Return the number of waiters of a share: the parked ones, and `first`, its waiter in the queue ('' for none).
local function waiting_in_share(share, first)
  return redis.call('ZLEXCOUNT', PARKED, '[' .. share .. ' ', '(' .. share .. '!') + (first == '' and 0 or 1)
end
