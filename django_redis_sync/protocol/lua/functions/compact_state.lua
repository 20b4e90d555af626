-- Read the compact state. A name can be compact if it has at most one lease and no waiters. The field '#' of the hash
-- LEASES is then a packed text with the state, and the only other key has the counters. If the name is expanded, return
-- false. Otherwise return the packed text ('' for an unused name), the time in microseconds, and the COMPACT fields:
-- fence, expiry of the key, end of the lease (0: none), seen, peak, holder, and the position of the record. A name that
-- has the key INFO is expanded, even if it has a packed text.
local function compact_state(base)
  if redis.call('EXISTS', base .. 'info') == 1 then
    set_key_names(base)
    return false
  end
  local packed = redis.pcall('HGET', LEASES, '#')
  if type(packed) ~= 'string' then
    set_key_names(base)
    if packed or redis.call('EXISTS', LEASES) == 1 then return false end -- leases without their INFO, or a foreign key
  end
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  if not packed then return '', us, 0, 0, 0, '', '', '', 1 end
  local format, fence, expiry, ends, seen, peak, holder, at = struct.unpack(COMPACT, packed)
  if format ~= FORMAT then error('the name is in a format of another version: ' .. format) end
  return packed, us, fence, expiry, ends, seen, peak, holder, at
end
