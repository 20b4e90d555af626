-- The clock went back: no lease end and no deadline may be further ahead than its longest duration.
local function clamp(name)
  for _, key in ipairs({LEASES, WAITERS}) do
    for _, t in ipairs(redis.call('ZREVRANGE', key, 0, BOUND - 1)) do
      local state, _, _, lease = string.match(redis.call('HGET', INFO, t) or '', RECORD)
      local most = state == 'x' and TOMBSTONE_TTL or ASLEEP
      if key == LEASES then most = tonumber(lease) or FIRST end
      if tonumber(redis.call('ZSCORE', key, t)) > name.now + most then redis.call('ZADD', key, name.now + most, t) end
    end
  end
end
