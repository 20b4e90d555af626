-- Return true if a permit is free for a job with these terms.
local function has_room(name, terms, limit)
  local bound, share = share_of(terms)
  return fits(name, 1, limit) and (not (name.shared and share) or share_fits(share_use(name, share), 1, bound))
end
