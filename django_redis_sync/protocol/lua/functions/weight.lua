-- Return the number of permits that a lease takes. For a lease of the whole name (0 permits), return a number above any
-- limit.
local function weight(permits)
  return permits == 0 and EXCLUSIVE or permits
end
