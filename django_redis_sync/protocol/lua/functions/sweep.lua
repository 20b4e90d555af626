-- Remove expired leases and dead waiters, up to a max number per script.
-- `me`: the token of the calling waiter, or nil. This waiter is alive, even if its deadline has passed.
local function sweep(name, me)
  if name.us < name.fence then -- the last fence is a future time: the clock was set back. Shorten leases and deadlines
    for _, key in ipairs({LEASES, WAITERS}) do
      for _, t in ipairs(redis.call('ZREVRANGE', key, 0, BOUND - 1)) do
        local state, _, _, lease = string.match(redis.call('HGET', INFO, t) or '', RECORD)
        local longest = state == 'x' and TOMBSTONE_TTL or ASLEEP
        if key == LEASES then longest = tonumber(lease) or FIRST end
        if tonumber(redis.call('ZSCORE', key, t)) > name.now + longest then redis.call('ZADD', key, name.now + longest, t) end
      end
    end
  end
  for round = 1, ROUNDS do
    local expired = redis.call('ZRANGEBYSCORE', LEASES, '-inf', name.at, 'LIMIT', '0', BOUND)
    if #expired > 0 then
      for _, t in ipairs(expired) do
        local state, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
        remove(name, t, state, terms, name.at)
        if state ~= 'k' then -- 'k': min_hold kept this lease after its release
          count(name, 'c', 1)
        end
      end
    end
    if #expired < BOUND then break end
    name.more = round == ROUNDS
  end
  local late = redis.call('ZRANGEBYSCORE', WAITERS, '-inf', name.at, 'LIMIT', '0', BOUND)
  if #late > 0 then
    remove_late(name, late, me)
  end
end
