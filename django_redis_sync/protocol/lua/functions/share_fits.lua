-- Return true if a share that holds `held` permits may get `permits` more. `bound`: its limit, '0' for none.
local function share_fits(held, permits, bound)
  return bound == '0' or held + weight(permits) <= tonumber(bound)
end
