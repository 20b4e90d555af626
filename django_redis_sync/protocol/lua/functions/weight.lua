-- What a lease of so many permits takes: a permit weighs one; 0 asks for the name alone, and weighs more
-- than any limit.
local function weight(permits)
  return permits == 0 and EXCLUSIVE or permits
end
