-- Add the permits of a new lease to those that its share holds. `t`, `record`: the token and its record.
-- If `t` was in the queue for its share, move the next waiter of the share to the end of the queue
-- (see queue_next_of_share).
local function take_share(name, t, permits, record)
  if name.card == 1 then -- this lease is the first, so earlier counts are outdated
    name.shared = whole(name, name.fence)
    put(name, '#shares', name.shared)
  end
  local _, _, _, _, terms = string.match(record, RECORD)
  local _, share = share_of(terms)
  if not share then return end
  local held, first = share_use(name, share)
  held = held + weight(permits)
  if first == t then
    first = queue_next_of_share(name, share, held, false)
  end
  store_share(name, share, held, first)
end
