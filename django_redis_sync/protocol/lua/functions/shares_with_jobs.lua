-- Return up to TOP_KEYS shares that have jobs which are away. `placed`: the key of a sorted set with the members
-- "<share> <ticket> <place>", all with the score 0.
local function shares_with_jobs(placed)
  local found, after = {}, '-'
  for _ = 1, TOP_KEYS do
    local next_one = redis.call('ZRANGEBYLEX', placed, after, '+', 'LIMIT', '0', '1')[1]
    if not next_one then break end
    found[#found + 1] = string.match(next_one, '^%S*')
    after = '(' .. found[#found] .. '!'
  end
  return found
end
