-- A winner is there: its hand-over needs no deadline and no wake-up any more.
local function claim(token)
  redis.call('ZREM', WAITERS, token)
  redis.call('DEL', WAKE)
end
