-- If no waiter of a share is in the queue, move its first parked waiter into the queue. This is necessary after the key
-- of the queue was lost.
local function repair_share(name, terms)
  local _, share = share_of(terms)
  if not share then return end
  local held, first = share_use(name, share)
  if first ~= '' and redis.call('ZSCORE', QUEUE, first) then return end
  local found = call_up(name, share, held, false)
  if found ~= first then
    redis.call('DEL', NEVER) -- a heartbeat must succeed even if the memory is full
    store_share(name, share, held, found)
  end
end
