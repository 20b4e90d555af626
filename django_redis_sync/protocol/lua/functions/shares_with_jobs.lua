-- Return up to TOP_KEYS shares that have away jobs. A job is away until its task queue delivers it again. `placed`:
-- the key of a sorted set with the members "<share> <ticket> <id>". All its scores are 0.
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
