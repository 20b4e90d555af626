-- Let a key of the name expire at `expiry`, or never if that is inf.
local function set_expiry(name, key, expiry)
  if expiry < math.huge then
    redis.call('PEXPIREAT', key, whole(name, expiry))
  else
    redis.call('PERSIST', key)
  end
end
