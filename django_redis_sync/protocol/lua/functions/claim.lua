-- The new holder has answered: remove the deadline of its handoff, and its wake-up message.
local function claim(token)
  redis.call('ZREM', WAITERS, token)
  redis.call('DEL', WAKE)
end
