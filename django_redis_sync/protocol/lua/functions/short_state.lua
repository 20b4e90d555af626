-- The short state: what is at most one lease and nobody waiting is packed into one field, under LEASES
-- as a hash, without any other key but the counts. Scripts that do not know it stop there, before they
-- write: they ask for a sorted set. Returns the packed text, '' when there is nothing of the name, false
-- when it lies open in its keys; unless it does, the clock; then LONE fields, in this order: fence expiry
-- ends seen peak holder, and where the record begins; expiry: of the key; ends: of the lease, 0 for none.
-- A name that has INFO lies open, whatever else there is.
local function short_state(base)
  if redis.call('EXISTS', base .. 'info') == 1 then
    lay_keys(base)
    return false
  end
  local packed = redis.pcall('HGET', LEASES, '#')
  if type(packed) ~= 'string' then
    lay_keys(base)
    if packed or redis.call('EXISTS', LEASES) == 1 then return false end -- leases whose INFO was lost, or not ours
  end
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  if not packed then return '', us, 0, 0, 0, '', '', '', 1 end
  local format, fence, expiry, ends, seen, peak, holder, at = struct.unpack(LONE, packed)
  if format ~= FORMAT then error('the name is in a format of another version: ' .. format) end
  return packed, us, fence, expiry, ends, seen, peak, holder, at
end
