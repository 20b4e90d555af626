-- The clock went back: move each lease end and deadline to at most its longest duration from now.
local function clamp(name)
  for _, key in ipairs({LEASES, WAITERS}) do
    for _, t in ipairs(redis.call('ZREVRANGE', key, 0, BOUND - 1)) do
      local state, _, _, lease = string.match(redis.call('HGET', INFO, t) or '', RECORD)
      local longest = state == 'x' and TOMBSTONE_TTL or ASLEEP
      if key == LEASES then longest = tonumber(lease) or FIRST end
      if tonumber(redis.call('ZSCORE', key, t)) > name.now + longest then redis.call('ZADD', key, name.now + longest, t) end
    end
  end
end
