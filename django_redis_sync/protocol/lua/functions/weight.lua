-- Return how many permits a lease counts as. A lease of the whole name (0 permits) counts as more than any limit.
local function weight(permits)
  return permits == 0 and EXCLUSIVE or permits
end
