-- Grants a name that nobody has. `expired`: the record of a lease that is over, '' for none; `new`: the
-- key is made here. Returns the fence, as text.
local function take_alone(name, token, lease, permits, terms, fence, expiry, seen, peak, expired, new)
  fence = fence < name.us and name.us or fence + 1
  local given, used, top = string.format('%d', fence), permits == '0' and '1' or permits, peak
  if #given ~= 16 then given = string.format('%.0f', fence) end -- see `open`
  if name.keep ~= '0' and peak ~= name.minute .. ':' .. used then
    top = highest(peak, name.minute, tonumber(used))
  end
  if expired ~= '' then redis.call('DEL', NEVER) end -- what it frees it may take, with the memory full
  local ends = name.now + lease
  local later = ends + GRACE > expiry
  if later then expiry = ends + 2 * GRACE end
  redis.call('HSET', LEASES, '#', pack(fence, expiry, ends, seen, top, token, 'h ' .. given .. ' ' .. lease .. ' ' .. terms))
  if later or new then redis.call('PEXPIREAT', LEASES, string.format('%.0f', expiry)) end
  if expired ~= '' then count(name, 'c', 1) end
  count(name, 'g', 1)
  if top ~= peak then redis.call('HSET', STATS, name.minute .. ':p', string.match(top, '%d+$')) end
  return given
end
