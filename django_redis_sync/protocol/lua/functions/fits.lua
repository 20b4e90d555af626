-- Return true if `permits` permits are free. 0 stands for the whole name. It is free if the name has no lease.
local function fits(name, permits, limit)
  if name.paused then return false end
  if permits == 0 then return name.card == 0 end
  local used = name.card + name.extra + permits
  if name.places and used == limit then -- the last free permit
    return not keeps(name)
  end
  return used <= limit
end
