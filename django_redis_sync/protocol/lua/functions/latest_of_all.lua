-- Return the latest end of all that the name has, infinite while an operator's mark lasts.
local function latest_of_all(name)
  local latest = name.latest
  for _, key in ipairs({LEASES, WAITERS}) do
    latest = math.max(latest, tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0))
  end
  local marks = redis.call('HMGET', INFO, '#limit', '#paused') -- its own, not those of its policy
  if marks[1] then latest = math.huge end
  if name.places then
    local last = redis.call('ZREVRANGE', string.sub(LEASES, 1, -7) .. 'due', '0', '0', 'WITHSCORES')[2]
    latest = math.max(latest, tonumber(last or 0) + PLACE_LIFE)
  end
  if marks[2] then
    latest = math.max(latest, pause_ends(marks[2]))
  end
  return latest
end
