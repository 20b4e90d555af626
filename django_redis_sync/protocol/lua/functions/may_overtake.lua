-- Return true if an unfair newcomer may pass the queue: not a head that has waited for HEARTBEAT, or a
-- large one would starve. abs: the clock may have gone back.
local function may_overtake(name)
  local head = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  return head and math.abs(name.now - head / 1000) < HEARTBEAT
end
