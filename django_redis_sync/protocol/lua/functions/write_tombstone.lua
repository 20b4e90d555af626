-- Write a tombstone: late copies of this token's acquire are answered with it, and never granted.
local function write_tombstone(name, token)
  local ends = name.now + TOMBSTONE_TTL
  if not tonumber(redis.pcall('HSET', INFO, token, 'x 0 0 0 0 - ')) then
    retry_write('HSET', INFO, token, 'x 0 0 0 0 - ')
  end
  redis.call('ZADD', WAITERS, string.format(name.format, ends), token)
  name.new_waiters, name.latest = true, math.max(name.latest, ends)
end
