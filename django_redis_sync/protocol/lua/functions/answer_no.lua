-- Return the reply to a rejected caller: `reason`, or "paused"; the number of waiters; how many ms permits were
-- held on average lately (empty: unknown); the limit in force.
local function answer_no(name, reason, waiting, limit)
  local minute = (name.now - name.now % 60000) / 60000
  local this, last = string.format(name.format, minute), string.format(name.format, minute - 1)
  local sums = redis.call('HMGET', name.stats, this .. ':r', last .. ':r')
  local n, held = 0, 0 -- releases, and ms that their permits were held, in this minute and the last
  for i = 1, 2 do
    local sum = tonumber(sums[i] or 0)
    n, held = n + math.floor(sum / PAIR), held + sum % PAIR
  end
  local mean = n > 0 and string.format(name.format, math.floor(held / n)) or ''
  return 'no ' .. (name.paused and 'paused ' or reason) .. waiting .. ' ' .. mean .. ' ' .. string.format(name.format, limit)
end
