-- Count a rejection, and return the reply "no REASON WAITING MEAN_HOLD LIMIT [OPENS]":
-- - REASON: "rate" if only the rate forbids the permits, or if a cool-down pauses the name; "paused" if an operator paused
--   the name; otherwise the argument `reason` ("full", "share", or "timeout")
-- - WAITING: the argument `waiting`, the number of waiters
-- - MEAN_HOLD: mean time in ms for which permits were held lately, or empty if unknown
-- - LIMIT: the argument `limit`, the limit in force
-- - OPENS: ms until the rate or the cool-down allows the call, only if REASON is "rate"
-- `how`: as in `acquire`. A caller that skips is counted as such, and not as rejected.
local function reject(name, reason, waiting, limit, how)
  local opens, idle = '', reason == 'full' and name.card + waiting == 0 and not name.rate
  if idle then name.puts = {} end -- store nothing about an unused name
  if name.paused and string.sub(name.paused, 1, 4) == 'cool' then
    opens = ' ' .. whole(name, pause_ends(name.paused) - name.now)
  elseif name.rate and name.opens > 0 and reason ~= 'share' then
    local ms = rate_opens(name, how == 'again' and 1 or waiting + 1)
    opens = ' ' .. whole(name, math.max(ms, name.opens)) -- waiters behind a caller that waited in vain don't matter
  end
  reason = opens ~= '' and 'rate' or name.paused and 'paused' or reason
  if name.paused or not idle then
    count(name, how == 'skip' and 'k' or reason == 'timeout' and 't' or 'n', 1)
  end
  local bound = how ~= 'skip' and (reason == 'share' and 'b' or reason == 'paused' and 'u' or reason == 'rate' and 'v'
    or reason == 'full' and how == 'wait' and 'm')
  if bound then
    count(name, bound, 1) -- the reason was another than the limit
  end
  local minute = (name.now - name.now % 60000) / 60000
  local this, last = string.format(name.format, minute), string.format(name.format, minute - 1)
  local sums = redis.call('HMGET', name.stats, this .. ':r', last .. ':r')
  local n, held = 0, 0 -- in this minute and the previous one: number of releases, and ms that their permits were held
  for i = 1, 2 do
    local sum = tonumber(sums[i] or 0)
    n, held = n + math.floor(sum / PAIR), held + sum % PAIR
  end
  local mean = n > 0 and string.format(name.format, math.floor(held / n)) or ''
  return 'no ' .. reason .. ' ' .. waiting .. ' ' .. mean .. ' ' .. string.format(name.format, limit) .. opens
end
