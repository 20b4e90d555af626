-- If the queue has no waiter of a share, call one up: the queue may have been lost.
local function repair_share(name, terms)
  local _, share = share_of(terms)
  if not share then return end
  local held, first = share_use(name, share)
  if first ~= '' and redis.call('ZSCORE', QUEUE, first) then return end
  local found = call_up(name, share, held, false)
  if found ~= first then
    redis.call('DEL', NEVER) -- a heartbeat is answered with the memory full too
    store_share(name, share, held, found)
  end
end
