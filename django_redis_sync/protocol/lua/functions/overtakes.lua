-- Whether an unfair newcomer may pass the queue: not past a head that has waited for BEAT, or a large
-- one would starve. abs: the clock may have gone back.
local function overtakes(name)
  local head = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  return head and math.abs(name.now - head / 1000) < BEAT
end
