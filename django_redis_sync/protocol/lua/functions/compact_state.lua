-- Read the compact state. A name with at most one lease and no waiters can be compact. All its data is then a packed
-- text, in the field '#' of the hash LEASES. Only the counters are in another key.
-- Return false if the name is expanded. A name with the key INFO is expanded, even if it also has a packed text.
-- Otherwise return these values:
-- - the packed text, or '' for an unused name
-- - the time in microseconds
-- - from the packed text: the last fence, expiry of the key, end of the lease (0: no lease), seen (see mismatch), peak
--   (see highest_use), and the token of the holder
-- - the position of the holder's record in the packed text
local function compact_state(base)
  if redis.call('EXISTS', base .. 'info') == 1 then
    set_key_names(base)
    return false
  end
  local packed = redis.pcall('HGET', LEASES, '#')
  if type(packed) ~= 'string' then
    set_key_names(base)
    if packed or redis.call('EXISTS', LEASES) == 1 then return false end -- INFO is lost, or LEASES has a foreign value
  end
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  if not packed then return '', us, 0, 0, 0, '', '', '', 1 end
  local format, fence, expiry, ends, seen, peak, holder, at = struct.unpack(COMPACT, packed)
  if format ~= FORMAT then error('the name is in a format of another version: ' .. format) end
  return packed, us, fence, expiry, ends, seen, peak, holder, at
end
