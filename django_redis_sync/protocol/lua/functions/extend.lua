-- Set the expiry of the name's keys to `expiry`, in server ms. `later`: true to set it for all keys. If `later` is
-- false, set it only for keys that this script may have created.
local function extend(name, later, expiry)
  local keys = {nil, nil, nil, nil} -- preallocated
  if later then keys[1] = INFO end
  if later or name.new_leases then keys[#keys + 1] = LEASES end
  -- If another program wrote a key, ZCARD fails, and the key keeps its expiry.
  if name.new_queue or later and tonumber(redis.pcall('ZCARD', QUEUE)) then keys[#keys + 1] = QUEUE end
  if name.new_waiters or later and tonumber(redis.pcall('ZCARD', WAITERS)) then keys[#keys + 1] = WAITERS end
  if name.shared and (later or name.new_queue) then keys[#keys + 1] = PARKED end
  for i = 1, #keys do
    if expiry < math.huge then
      redis.call('PEXPIREAT', keys[i], string.format(name.format, expiry))
    else
      redis.call('PERSIST', keys[i])
    end
  end
end
