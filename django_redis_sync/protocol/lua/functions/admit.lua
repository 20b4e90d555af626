-- Grant a lease to a newcomer, and return the reply.
-- `free`: true if enough permits are free. If it is false, the caller uses shadow mode. The lease is then granted all
-- the same, and a rejection is counted.
-- `alone`: true if there are no waiters, and the caller allows the compact state. In this case, the name becomes
-- compact after a grant of free permits, except in these cases:
-- - The lease is permanent.
-- - The name has another lease, or a limit that an operator set.
-- - The name has a deadline, for example that of a tombstone.
-- - The name has a job, or the field '#clash'.
-- The compact state stores the terms as the caller sent them, without the common share that `terms` may contain.
local function admit(name, base, token, lease, permits, terms, wants, free, alone)
  alone = alone and free and name.card == 0 and lease ~= 'inf' and not name.override
  if alone and name.places then alone = redis.call('EXISTS', base .. 'due') == 0 end
  if alone and redis.call('ZCARD', WAITERS) == 0 and not redis.call('HGET', INFO, '#clash') then
    local reply = take_compact(name.us, name.keep, base, token, lease, permits, ARGV[5], name.fence, name.expiry, wants, name.peak or '', '', true)
    redis.call('DEL', INFO) -- last: if the script stops before this write, `open` expands the packed text
    name.puts, name.dropped = {}, false -- nothing is left for `finish`
    return reply
  end
  local fence, ms, used = grant(name, token, permits, lease, terms, nil, false, not free)
  local reply = 'ok ' .. fence .. ' ' .. ms
  if free then return name.card > 1 and reply .. ' ' .. used or reply end
  return reply .. ' ' .. used .. (name.paused and ' paused' or ' full')
end
