-- Whether so many permits are free.
local function fits(name, permits, limit)
  if name.paused then return false end
  if permits == 0 then return name.card == 0 end
  return name.card + name.extra + permits <= limit
end
