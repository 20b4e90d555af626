-- Gives the only lease back.
local function give_back(name, fence, expiry, seen, peak)
  local idle = pack(fence, expiry, 0, seen, peak, '', '')
  if not tonumber(redis.pcall('HSET', LEASES, '#', idle)) then
    insist('HSET', LEASES, '#', idle)
  end
  count(name, 'r', PAIR + math.max(0, math.floor(name.now - fence / 1000)))
end
