-- Return the fields of a name in the compact state that `count` and `tidy` read.
local function compact_fields(us, keep)
  return {us, (us - us % 1000) / 1000, false, false, '%.0f', keep, string.sub(LEASES, 1, -7) .. 'stats'}
end
