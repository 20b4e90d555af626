-- A key of the name lives until then, or for ever.
local function expire(name, key, expiry)
  if expiry < math.huge then redis.call('PEXPIREAT', key, whole(name, expiry))
  else redis.call('PERSIST', key) end
end
