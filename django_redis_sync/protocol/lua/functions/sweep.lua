-- Remove expired leases and waiters, a bounded number in one script. `me`: the token that asks again, if
-- any: it is alive, whatever its deadline says.
local function sweep(name, me)
  if name.us < name.fence then -- a fence is a time: the clock went back
    clamp(name)
  end
  for round = 1, ROUNDS do
    local over = redis.call('ZRANGEBYSCORE', LEASES, '-inf', name.at, 'LIMIT', '0', BOUND)
    if #over > 0 then
      remove_expired(name, over)
    end
    if #over < BOUND then break end
    name.more = round == ROUNDS
  end
  local late = redis.call('ZRANGEBYSCORE', WAITERS, '-inf', name.at, 'LIMIT', '0', BOUND)
  if #late > 0 then
    remove_late(name, late, me)
  end
end
