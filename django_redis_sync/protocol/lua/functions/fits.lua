-- Return true if `permits` more permits are within the limit, and the name is not paused. If `permits` is 0 (the whole
-- name), return true if the name has no lease. The last free permit may be reserved for a job (see keeps).
local function fits(name, permits, limit)
  if name.paused then return false end
  if permits == 0 then return name.card == 0 end
  local used = name.card + name.extra + permits
  if name.places and used == limit then -- the caller asks for the last free permit
    return not keeps(name)
  end
  return used <= limit
end
