-- Take the head out of the queue until its share may have its permits.
local function park_head(name, t, arrival, terms)
  local _, share = share_of(terms)
  redis.call('ZREM', QUEUE, t)
  park(name, share, arrival, t)
  store_share(name, share, share_use(name, share), '')
end
