-- Remove expired leases and dead waiters, up to a bound per script. `me`: the token whose heartbeat this is: it is
-- alive, even if its deadline has passed.
local function sweep(name, me)
  if name.us < name.fence then -- fences are times, so the clock went back
    clamp(name)
  end
  for round = 1, ROUNDS do
    local expired = redis.call('ZRANGEBYSCORE', LEASES, '-inf', name.at, 'LIMIT', '0', BOUND)
    if #expired > 0 then
      remove_expired(name, expired)
    end
    if #expired < BOUND then break end
    name.more = round == ROUNDS
  end
  local late = redis.call('ZRANGEBYSCORE', WAITERS, '-inf', name.at, 'LIMIT', '0', BOUND)
  if #late > 0 then
    remove_late(name, late, me)
  end
end
