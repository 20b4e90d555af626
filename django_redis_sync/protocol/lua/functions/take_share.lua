-- Add the permits of a new lease to the use of its share. `t`: the token of the lease. `record`: its record, which has
-- the share. If `t` was the waiter of the share in the queue, let the first parked waiter of the share enter the queue
-- at its end (see call_up).
local function take_share(name, t, permits, record)
  if name.card == 1 then -- the name had no leases, so earlier counts are invalid
    name.shared = whole(name, name.fence)
    put(name, '#shares', name.shared)
  end
  local _, _, _, _, terms = string.match(record, RECORD)
  local _, share = share_of(terms)
  if not share then return end
  local held, first = share_use(name, share)
  held = held + weight(permits)
  if first == t then
    first = call_up(name, share, held, false)
  end
  store_share(name, share, held, first)
end
