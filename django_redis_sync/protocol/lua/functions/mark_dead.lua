-- A buried token is never granted again: late copies of its acquire find this.
local function mark_dead(name, token)
  local ends = name.now + BURIAL
  if not tonumber(redis.pcall('HSET', INFO, token, 'x 0 0 0 0 - ')) then
    insist('HSET', INFO, token, 'x 0 0 0 0 - ')
  end
  redis.call('ZADD', WAITERS, string.format(name.format, ends), token)
  name.new_waiters, name.latest = true, math.max(name.latest, ends)
end
