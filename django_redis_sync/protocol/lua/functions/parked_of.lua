-- Return the first `limit` parked waiters of a share, as members of PARKED.
local function parked_of(share, limit)
  return redis.call('ZRANGEBYLEX', PARKED, '[' .. share .. ' ', '(' .. share .. '!', 'LIMIT', '0', limit)
end
