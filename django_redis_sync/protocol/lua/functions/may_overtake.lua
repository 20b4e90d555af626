-- Return true if an unfair newcomer may pass the queue: until its first waiter has waited for HEARTBEAT. Otherwise a
-- waiter that needs many permits would starve. abs: the clock may have gone back.
local function may_overtake(name)
  local head = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  return head and math.abs(name.now - head / 1000) < HEARTBEAT
end
