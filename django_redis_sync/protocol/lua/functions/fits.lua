-- Return true if the name is not paused, and `permits` more permits are within the limit. A request for the whole name
-- has the `permits` 0. It fits if the name has no lease. A permit that is reserved for a job (see keeps) is not free.
local function fits(name, permits, limit)
  if name.paused then return false end
  if permits == 0 then return name.card == 0 end
  local used = name.card + name.extra + permits
  if name.places and used == limit then -- the caller asks for the last free permit
    return not keeps(name)
  end
  return used <= limit
end
