-- Move the first waiter from the queue to the parked waiters of its share.
local function park_head(name, t, arrival, terms)
  local _, share = share_of(terms)
  redis.call('ZREM', QUEUE, t)
  park(name, share, arrival, t)
  store_share(name, share, share_use(name, share), '')
end
