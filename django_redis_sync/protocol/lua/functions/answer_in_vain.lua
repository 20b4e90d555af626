-- Count a waiter that gave up, and return the reply. The reply says why the waiter got no permit: its share's
-- limit was reached, an operator paused the name, or the time was up.
local function answer_in_vain(name, terms)
  local permits, limit = string.match(terms, '^(%d+) (%d+)')
  local bound, share = share_of(terms)
  limit = name.override or tonumber(limit)
  if share then
    local held, first = share_use(name, share)
    if not share_fits(held, tonumber(permits), bound) then
      return reject(name, 'share', waiting_in_share(share, first), math.min(limit, tonumber(bound)))
    end
  end
  return reject(name, 'timeout', waiting_of(name), limit)
end
