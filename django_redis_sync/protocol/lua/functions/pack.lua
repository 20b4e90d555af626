-- Writes the short state, with one lease or (holder '', ends 0, record '') none.
local function pack(fence, expiry, ends, seen, peak, holder, record)
  return struct.pack(LONE, FORMAT, fence, expiry, ends, seen, peak, holder) .. record
end
