-- Confirm a handoff, because the new holder has answered. Remove the deadline for the answer, and the wake-up message.
local function claim(token)
  redis.call('ZREM', WAITERS, token)
  redis.call('DEL', WAKE)
end
