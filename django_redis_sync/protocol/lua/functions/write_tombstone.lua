-- Write a tombstone, so that the token never gets permits again. If an acquire of the token arrives later, the reply is
-- "dead".
local function write_tombstone(name, token)
  local dead = 'x 0 0 0 0 - '
  local _ = tonumber(redis.pcall('HSET', INFO, token, dead)) or retry_write('HSET', INFO, token, dead)
  set_deadline(name, token, name.now + TOMBSTONE_TTL)
end
