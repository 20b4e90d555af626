-- Count a waiter that leaves without a lease, and return its rejection (see reject). The reason is "paused" if an
-- operator paused the name. Otherwise, it is "share" if the waiter's share is at its limit, "rate" if only the rate forbids
-- the permits, or else the argument `reason`.
local function answer_in_vain(name, terms, reason)
  local permits, limit = string.match(terms, '^(%d+) (%d+)')
  local bound, share = share_of(terms)
  limit = name.override or tonumber(limit)
  if share then
    local held, first = share_use(name, share)
    if not share_fits(held, tonumber(permits), bound) then
      return reject(name, 'share', waiting_in_share(share, first), math.min(limit, tonumber(bound)), 'again')
    end
  end
  if name.rate then -- set name.opens
    fits(name, tonumber(permits), limit)
  end
  return reject(name, reason, waiting_of(name), limit, 'again')
end
