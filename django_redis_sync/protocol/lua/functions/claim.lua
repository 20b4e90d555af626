-- Confirm a handoff after the new holder has answered: remove the holder's deadline, and the wake-up message.
local function claim(token)
  redis.call('ZREM', WAITERS, token)
  redis.call('DEL', WAKE)
end
