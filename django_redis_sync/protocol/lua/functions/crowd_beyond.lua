-- Return how many wait if a job may not wait with them, and no permit is free for it. Return nil if it may.
local function crowd_beyond(name, base, most, terms, limit)
  local crowd = redis.call('ZCARD', base .. 'places') + waiting_of(name)
  if crowd < most then return nil end
  local bound, share = share_of(terms)
  local fitting = not (name.shared and share) or share_fits(share_use(name, share), 1, bound)
  return not (fitting and fits(name, 1, limit)) and crowd or nil
end
