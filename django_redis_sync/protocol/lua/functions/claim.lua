-- The new holder has answered: its handoff needs no deadline and no wake-up message any more.
local function claim(token)
  redis.call('ZREM', WAITERS, token)
  redis.call('DEL', WAKE)
end
