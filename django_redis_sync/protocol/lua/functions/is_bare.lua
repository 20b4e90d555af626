-- Whether a name without leases and waiters has nothing else either: no mark of an operator, no
-- tombstone, no note of callers that disagree.
local function is_bare(name)
  return not name.override and redis.call('ZCARD', WAITERS) == 0 and not redis.call('HGET', INFO, '#clash')
end
