-- Write a tombstone: the token is never granted again. Late copies of its acquire get the reply "dead".
local function write_tombstone(name, token)
  local ends = name.now + TOMBSTONE_TTL
  if not tonumber(redis.pcall('HSET', INFO, token, 'x 0 0 0 0 - ')) then
    retry_write('HSET', INFO, token, 'x 0 0 0 0 - ')
  end
  redis.call('ZADD', WAITERS, string.format(name.format, ends), token)
  name.new_waiters, name.latest = true, math.max(name.latest, ends)
end
