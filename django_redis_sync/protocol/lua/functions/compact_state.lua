-- Read the compact state. A name can be compact if it has at most one lease and no waiters. A packed text in the field
-- '#' of the hash LEASES then has the whole state, except the counters, which are in another key.
-- If the name is expanded, return false. A name that has the key INFO is expanded, even if it also has a packed text.
-- Otherwise return these values:
-- - the packed text, or '' for an unused name
-- - the time in microseconds
-- - the COMPACT fields: fence, expiry of the key, end of the lease (0: none), seen (see mismatch), peak (see
--   highest_use), holder (its token)
-- - the position of the record in the packed text
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
