-- Return true if the name is not paused, and `permits` more permits are within the limit and the rate. A request for the
-- whole name has the `permits` 0. It fits if the name has no lease.
-- If only the rate forbids the permits, set `name.opens` to the ms until it allows them. Otherwise set it to 0.
local function fits(name, permits, limit)
  name.opens = 0
  if name.paused then return false end
  local free = permits == 0 and name.card == 0 or permits > 0 and name.card + name.extra + permits <= limit
  if free and name.rate then
    name.opens = rate_opens(name, math.max(1, permits))
    keep_moved(name)
    return name.opens == 0
  end
  return free
end
