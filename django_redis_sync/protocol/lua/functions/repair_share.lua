-- Repair the share of a waiter after Redis has lost the key of the queue. If the queue has no waiter of the share,
-- move the first parked waiter (one outside the queue) into the queue. `terms`: the waiter's terms.
local function repair_share(name, terms)
  local _, share = share_of(terms)
  if not share then return end
  local held, first = share_use(name, share)
  if first ~= '' and redis.call('ZSCORE', QUEUE, first) then return end
  local found = queue_next_of_share(name, share, held, false)
  if found ~= first then
    redis.call('DEL', NEVER) -- allow a heartbeat to write even if the memory is full (see retry_write)
    store_share(name, share, held, found)
  end
end
