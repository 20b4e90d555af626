-- Return the rank of a parked waiter, counted behind the whole queue, or nil.
local function parked_rank(record)
  local _, _, arrival, _, terms = string.match(record, RECORD)
  local _, share = share_of(terms)
  local rank = share and redis.call('ZRANK', PARKED, parked_as(share, arrival, ARGV[1]))
  return rank and rank + redis.call('ZCARD', QUEUE) or nil
end
