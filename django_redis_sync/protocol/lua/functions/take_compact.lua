-- Grant the only lease of a name in the compact state (see compact_state), and return the reply. `fence`, `expiry`,
-- `peak`: from compact_state. `seen`: the kind and the limit of the caller. `expired`: the token of an expired lease,
-- or ''. `new`: true if this call creates the key.
-- Most acquires end here. So for speed, this function calls few other functions.
local function take_compact(us, keep, base, token, lease, permits, terms, fence, expiry, seen, peak, expired, new)
  local now = (us - us % 1000) / 1000
  fence = fence < us and us or fence + 1
  local given, top, minute, stats = string.format('%d', fence), peak, false, false
  if #given ~= 16 then given = string.format('%.0f', fence) end -- see `open`
  if keep ~= '0' then
    minute, stats = string.format('%d', (now - now % 60000) / 60000), base .. 'stats'
    if peak ~= minute .. (permits < 2 and ':1' or ':' .. permits) then
      top = highest_use(stats, minute, peak, permits == 0 and 1 or permits)
    end
  end
  if expired ~= '' then redis.call('DEL', NEVER) end -- replace it even if the memory is full (see retry_write)
  local ends = now + lease
  local later = ends + GRACE > expiry
  if later then expiry = ends + 2 * GRACE end
  redis.call('HSET', LEASES, '#', struct.pack(RECORDED, FORMAT, fence, expiry, ends, seen, top, token, 'h ', given, ' ', lease, ' ', terms))
  if later or new then redis.call('PEXPIREAT', LEASES, string.format('%.0f', expiry)) end
  if minute then
    if expired ~= '' then redis.pcall('HINCRBY', stats, minute .. ':c', '1') end
    if redis.pcall('HINCRBY', stats, minute .. ':g', '1') == 1 then -- see `count`
      tidy(compact_fields(us, keep, stats))
    end
    if top ~= peak then redis.call('HSET', stats, minute .. ':p', string.match(top, '%d+$')) end
  end
  return 'ok ' .. given .. ' ' .. lease
end
