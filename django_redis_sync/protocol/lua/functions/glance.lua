-- The name in the short state: of its fields, those with which things are counted.
local function glance(us, keep)
  return {us, (us - us % 1000) / 1000, false, false, '%.0f', keep, string.sub(LEASES, 1, -7) .. 'stats'}
end
