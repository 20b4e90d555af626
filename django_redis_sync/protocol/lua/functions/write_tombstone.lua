-- Write a tombstone, so that the token gets no permits. If an acquire of the token arrives within TOMBSTONE_TTL, its
-- reply is "dead".
local function write_tombstone(name, token)
  local dead = 'x 0 0 0 0 - '
  local _ = tonumber(redis.pcall('HSET', INFO, token, dead)) or retry_write('HSET', INFO, token, dead)
  set_deadline(name, token, name.now + TOMBSTONE_TTL)
end
