-- Write a tombstone for `token`, so that it gets no permits. Within TOMBSTONE_TTL, the reply to an acquire of this
-- token is "dead".
local function write_tombstone(name, token)
  local dead = 'x 0 0 0 0 - '
  local _ = tonumber(redis.pcall('HSET', INFO, token, dead)) or retry_write('HSET', INFO, token, dead)
  set_deadline(name, token, name.now + TOMBSTONE_TTL)
end
