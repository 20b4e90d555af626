-- Return the name in the compact state: only the fields with which things are counted.
local function compact_fields(us, keep)
  return {us, (us - us % 1000) / 1000, false, false, '%.0f', keep, string.sub(LEASES, 1, -7) .. 'stats'}
end
