-- Return what a lease of that many permits takes: each permit weighs one. 0 asks for the name alone, and
-- weighs more than any limit.
local function weight(permits)
  return permits == 0 and EXCLUSIVE or permits
end
