-- Expand the compact state into several keys, which most functions work on. First write INFO, with the packed text in
-- '#lone'. Remove '#lone' last. If a script stops in between, '#lone' makes the next script expand the name again.
-- If the memory is full, Redis denies the first write, unless the caller has run DEL before (see retry_write).
local function expand(packed)
  set_key_names(string.sub(LEASES, 1, -7))
  local _, fence, expiry, ends, seen, peak, holder, at = struct.unpack(COMPACT, packed)
  local until_then = string.format('%.0f', expiry)
  local record = string.sub(packed, at)
  local _, _, _, _, terms = string.match(record, RECORD)
  local extra = terms and weight(tonumber(string.match(terms, '^%d+'))) - 1 or 0
  redis.call('HSET', INFO, '#lone', packed, '#fence', string.format('%.0f', fence), '#expiry', until_then,
    '#extra', string.format('%.0f', extra), '#seen', seen)
  if peak ~= '' then redis.call('HSET', INFO, '#peak', peak) end
  if terms then redis.call('HSET', INFO, holder, record) end
  redis.call('PEXPIREAT', INFO, until_then)
  redis.call('DEL', LEASES)
  if terms then
    redis.call('ZADD', LEASES, string.format('%.0f', ends), holder)
    redis.call('PEXPIREAT', LEASES, until_then)
  end
  redis.call('HDEL', INFO, '#lone')
end
