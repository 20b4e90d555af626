-- Confirm a handoff, because the new holder has answered. Remove the deadline of its answer, and its wake-up message.
local function claim(token)
  redis.call('ZREM', WAITERS, token)
  redis.call('DEL', WAKE)
end
