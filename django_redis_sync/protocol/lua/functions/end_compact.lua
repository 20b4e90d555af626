-- Reply to a release of a name in the compact state (see compact_state). If the compact state can't store the result,
-- expand the name and return nil. The caller then continues in the expanded state.
-- `how`: see the script `release`. `last`: the fence of the last grant. The other arguments come from compact_state.
local function end_compact(us, base, packed, how, last, expiry, ends, seen, peak, holder)
  local token, fence, keep, _, tombstone, hold = unpack(ARGV)
  local held = holder == token and us < ends * 1000
  local mine = held and last == tonumber(fence)
  if mine and how == 'release' and (not tombstone or tombstone == '0' and hold == '0') then -- the usual case
    local idle = struct.pack(PACKED, FORMAT, last, expiry, 0, seen, peak, '', '')
    if not tonumber(redis.pcall('HSET', LEASES, '#', idle)) then
      retry_write('HSET', LEASES, '#', idle)
    end
    if keep == '0' then return 'ok' end
    local now = (us - us % 1000) / 1000
    local ms = now > last / 1000 and now - last / 1000 or 0
    local n = PAIR + ms - ms % 1
    local by = string.format('%d', n)
    if #by ~= 13 then by = string.format('%.0f', n) end
    local minute, stats = string.format('%d', (now - now % 60000) / 60000), base .. 'stats'
    if redis.pcall('HINCRBY', stats, minute .. ':r', by) == n then -- see `count`
      tidy(compact_fields(us, keep, stats))
    end
    return 'ok'
  elseif held and (how == 'giveup' or how == 'withdraw') then
    return 'ok ' .. string.format('%.0f', last) .. ' ' .. string.format('%.0f', ends - (us - us % 1000) / 1000)
  elseif not mine and (how == 'release' or how == 'downgrade') then
    return 'lost'
  elseif packed ~= '' then
    redis.call('DEL', NEVER)
    expand(packed)
  end
end
