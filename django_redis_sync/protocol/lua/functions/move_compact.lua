-- Change the end of the only lease of a name in the compact state.
local function move_compact(fence, expiry, ends, seen, peak, holder, record)
  local later = ends + GRACE > expiry
  if later then expiry = ends + 2 * GRACE end
  local packed = struct.pack(PACKED, FORMAT, fence, expiry, ends, seen, peak, holder, record)
  if not tonumber(redis.pcall('HSET', LEASES, '#', packed)) then
    retry_write('HSET', LEASES, '#', packed)
  end
  if later then redis.call('PEXPIREAT', LEASES, string.format('%.0f', expiry)) end
end
