-- Append away jobs (jobs that will be delivered again) to the flat list `waiters`, up to `limit` jobs. Return the
-- number of all away jobs.
local function add_jobs(name, waiters, limit)
  local base = string.sub(LEASES, 1, -7)
  local places = limit > 0 and redis.call('ZRANGE', base .. 'places', '0', limit - 1, 'WITHSCORES') or {}
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
