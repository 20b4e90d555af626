-- Read the compact state: a name with at most one lease and no waiters is packed into one field of LEASES
-- as a hash, without any other key but the counters. Return the packed text ('' if the name has nothing,
-- false if it is expanded), the clock (unless expanded), then the COMPACT fields: fence, expiry of the key,
-- end of the lease (0 for none), seen, peak, holder, and where the record begins.
-- A name that has INFO is expanded, whatever else there is.
local function compact_state(base)
  if redis.call('EXISTS', base .. 'info') == 1 then
    set_key_names(base)
    return false
  end
  local packed = redis.pcall('HGET', LEASES, '#')
  if type(packed) ~= 'string' then
    set_key_names(base)
    if packed or redis.call('EXISTS', LEASES) == 1 then return false end -- leases whose INFO was lost, or not ours
  end
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  if not packed then return '', us, 0, 0, 0, '', '', '', 1 end
  local format, fence, expiry, ends, seen, peak, holder, at = struct.unpack(COMPACT, packed)
  if format ~= FORMAT then error('the name is in a format of another version: ' .. format) end
  return packed, us, fence, expiry, ends, seen, peak, holder, at
end
