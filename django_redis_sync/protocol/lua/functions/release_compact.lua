-- Release the only lease. Most releases end here, so this function calls few others.
local function release_compact(us, keep, base, fence, expiry, seen, peak)
  local idle = struct.pack(PACKED, FORMAT, fence, expiry, 0, seen, peak, '', '')
  if not tonumber(redis.pcall('HSET', LEASES, '#', idle)) then
    retry_write('HSET', LEASES, '#', idle)
  end
  if keep == '0' then return end
  local now = (us - us % 1000) / 1000
  local held = now > fence / 1000 and now - fence / 1000 or 0
  local n = PAIR + held - held % 1
  local by = string.format('%d', n)
  if #by ~= 13 then by = string.format('%.0f', n) end
  local minute, stats = string.format('%d', (now - now % 60000) / 60000), base .. 'stats'
  if redis.pcall('HINCRBY', stats, minute .. ':r', by) == n then
    tidy(compact_fields(us, keep))
  end
end
