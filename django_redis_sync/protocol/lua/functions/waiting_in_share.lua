-- Return how many wait in a share. `first`: its waiter that is in the queue ('' for none).
local function waiting_in_share(share, first)
  return redis.call('ZLEXCOUNT', PARKED, '[' .. share .. ' ', '(' .. share .. '!') + (first == '' and 0 or 1)
end
