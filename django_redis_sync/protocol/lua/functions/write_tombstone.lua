-- Write a tombstone: the token is never granted again. Late copies of its acquire get the reply "dead".
local function write_tombstone(name, token)
  local dead = 'x 0 0 0 0 - '
  local _ = tonumber(redis.pcall('HSET', INFO, token, dead)) or retry_write('HSET', INFO, token, dead)
  set_deadline(name, token, name.now + TOMBSTONE_TTL)
end
