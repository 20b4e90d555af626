-- Return true if the name is not paused, and `permits` more permits are within the limit. A request for the whole name
-- has the `permits` 0. It fits if the name has no lease.
local function fits(name, permits, limit)
  if name.paused then return false end
  if permits == 0 then return name.card == 0 end
  return name.card + name.extra + permits <= limit
end
