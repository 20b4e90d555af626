-- The short state: what is at most one lease and nobody waiting is packed into one field, under LEASES
-- as a hash, without any other key but the counts. Scripts that do not know it stop there, before they
-- write: they ask for a sorted set. Returns the packed text, '' when there is nothing of the name, false
-- when it lies open in its keys; and what is in it. A name that has INFO lies open, whatever else there
-- is. LONE fields, in this order: format fence expiry ends seen peak holder, then the record;
-- expiry: of the key; ends: of the lease, 0 for none.
local function short_state()
  if redis.call('EXISTS', INFO) == 1 then return false end
  local packed = redis.pcall('HGET', LEASES, '#')
  if not packed and redis.call('EXISTS', LEASES) == 0 then return '', 0, 0, 0, '', '', '', '' end
  if type(packed) ~= 'string' then return false end -- leases whose INFO was lost, or not ours
  local format, fence, expiry, ends, seen, peak, holder, at = struct.unpack(LONE, packed)
  if format ~= FORMAT then error('the name is in a format of another version: ' .. format) end
  return packed, fence, expiry, ends, seen, peak, holder, string.sub(packed, at)
end
