-- Add jobs that are away to the rows of waiters, up to `most`. Return how many there are.
local function add_places(name, waiters, most)
  local base = string.sub(LEASES, 1, -7)
  local places = most > 0 and redis.call('ZRANGE', base .. 'places', '0', most - 1, 'WITHSCORES') or {}
  for i = 1, #places, 2 do
    local due = redis.call('ZSCORE', base .. 'due', places[i]) or '0'
    if tonumber(due) + PLACE_LIFE > name.now then
      for _, text in ipairs({places[i], places[i + 1], due, redis.call('HGET', INFO, places[i]) or ''}) do
        waiters[#waiters + 1] = text
      end
    end
  end
  return redis.call('ZCARD', base .. 'places')
end
