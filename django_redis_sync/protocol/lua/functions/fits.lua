-- Return true if the name has `permits` free permits, and is not paused. If `permits` is 0, return true if the whole
-- name is free, that is, if it has no lease.
local function fits(name, permits, limit)
  if name.paused then return false end
  if permits == 0 then return name.card == 0 end
  local used = name.card + name.extra + permits
  if name.places and used == limit then -- the last free permit
    return not keeps(name)
  end
  return used <= limit
end
