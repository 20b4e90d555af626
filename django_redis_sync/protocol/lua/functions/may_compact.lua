-- Return true if a name without leases and waiters can be compact: it has no override, no tombstone, no job that is
-- away, and no note of callers with different limits.
local function may_compact(name)
  if name.places and redis.call('EXISTS', string.sub(LEASES, 1, -7) .. 'due') == 1 then return false end
  return not name.override and redis.call('ZCARD', WAITERS) == 0 and not redis.call('HGET', INFO, '#clash')
end
