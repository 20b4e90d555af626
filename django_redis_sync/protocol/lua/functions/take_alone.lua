-- Grants a name that nobody has. `expired`: who has a lease that is over, '' for nobody; `new`: the key is
-- made here. Returns the reply. What the most asks come through stands in line.
local function take_alone(us, keep, base, token, lease, permits, terms, fence, expiry, seen, peak, expired, new)
  local now = (us - us % 1000) / 1000
  fence = fence < us and us or fence + 1
  local given, top, minute, stats = string.format('%d', fence), peak, false, false
  if #given ~= 16 then given = string.format('%.0f', fence) end -- see `open`
  if keep ~= '0' then
    minute, stats = string.format('%d', (now - now % 60000) / 60000), base .. 'stats'
    if peak ~= minute .. (permits < 2 and ':1' or ':' .. permits) then
      top = highest(stats, minute, peak, permits == 0 and 1 or permits)
    end
  end
  if expired ~= '' then redis.call('DEL', NEVER) end -- what it frees it may take, with the memory full
  local ends = now + lease
  local later = ends + GRACE > expiry
  if later then expiry = ends + 2 * GRACE end
  redis.call('HSET', LEASES, '#', struct.pack(RECORDED, FORMAT, fence, expiry, ends, seen, top, token, 'h ', given, ' ', lease, ' ', terms))
  if later or new then redis.call('PEXPIREAT', LEASES, string.format('%.0f', expiry)) end
  if minute then
    if expired ~= '' then count(glance(us, keep), 'c', 1) end
    if redis.pcall('HINCRBY', stats, minute .. ':g', '1') == 1 then tidy(glance(us, keep)) end -- as `count`
    if top ~= peak then redis.call('HSET', stats, minute .. ':p', string.match(top, '%d+$')) end
  end
  return 'ok ' .. given .. ' ' .. lease
end
