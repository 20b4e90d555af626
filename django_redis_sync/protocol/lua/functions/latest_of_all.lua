-- Return the latest time at which a lease, waiter, or operator's override of the name ends. Return inf if one of
-- them has no end.
local function latest_of_all(name)
  local latest = name.latest
  for _, key in ipairs({LEASES, WAITERS}) do
    latest = math.max(latest, tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0))
  end
  local own = redis.call('HMGET', INFO, '#limit', '#paused') -- overrides of the name, not of its policy
  if own[1] then latest = math.huge end
  if own[2] then
    latest = math.max(latest, pause_ends(own[2]))
  end
  return latest
end
