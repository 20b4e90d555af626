-- Return true if a share that holds `held` permits may get `permits` more. `bound`: the share's limit ('0': none).
local function share_fits(held, permits, bound)
  return bound == '0' or held + weight(permits) <= tonumber(bound)
end
