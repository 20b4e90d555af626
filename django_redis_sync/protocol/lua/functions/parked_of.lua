-- Return the first parked waiters of a share, as members of PARKED.
local function parked_of(share, most)
  return redis.call('ZRANGEBYLEX', PARKED, '[' .. share .. ' ', '(' .. share .. '!', 'LIMIT', '0', most)
end
