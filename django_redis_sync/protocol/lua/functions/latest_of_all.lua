-- Return the latest time at which a lease, a waiter, an operator's override, a cool-down, or the log of the rate of the
-- name ends. Return inf if one of them has no end.
local function latest_of_all(name)
  local latest = name.latest
  for _, key in ipairs({LEASES, WAITERS}) do
    latest = math.max(latest, tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0))
  end
  local own = redis.call('HMGET', INFO, '#limit', '#paused', '#cool', '#rate') -- overrides of the name, not of its policy
  if own[1] or own[4] and string.find(own[4], ' op', 1, true) then latest = math.huge end
  if own[2] then
    latest = math.max(latest, pause_ends(own[2]))
  end
  if own[3] then
    latest = math.max(latest, tonumber(string.match(own[3], ' (%d+) ')))
  end
  if name.rate then -- that of the policy, too
    latest = math.max(latest, name.now + tonumber(string.match(name.rate, '/(%d+)')))
  end
  return latest
end
