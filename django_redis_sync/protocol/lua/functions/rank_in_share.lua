-- Estimate the rank of a job in a name with shares, which take turns: the jobs of its share before it, times the
-- number of shares with jobs (TOP_KEYS at most). `placed` has "<share> <ticket> <place>", with score 0.
local function rank_in_share(base, share, ticket, place)
  local placed, own = base .. 'placed', share .. ' ' .. ticket .. ' ' .. place
  redis.call('ZADD', placed, '0', own)
  local before = redis.call('ZLEXCOUNT', placed, '[' .. share .. ' ', '(' .. own)
  return before * #shares_with_jobs(placed)
end
