-- Return the number of permits that a lease takes. For 0 permits (the whole name), it is above any limit.
local function weight(permits)
  return permits == 0 and EXCLUSIVE or permits
end
