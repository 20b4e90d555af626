-- Return how much a lease of that many permits counts. 0 permits are the whole name: more than any limit.
local function weight(permits)
  return permits == 0 and EXCLUSIVE or permits
end
