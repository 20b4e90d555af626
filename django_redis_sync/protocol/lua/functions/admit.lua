-- Grant a lease to a newcomer (a caller that is not waiting yet), and return the reply.
-- `free`: true if enough permits are free. If it is false, the caller uses shadow mode, so the lease is granted anyway.
-- `alone`: true if there are no waiters, and the caller allows the compact state (see compact_state).
-- If `free` and `alone` are true, the name becomes compact, except in these cases:
-- - The new lease is permanent.
-- - The name has another lease, the field '#clash', a rate, a cool-down, or a limit that an operator set.
-- - The name has a deadline, for example that of a tombstone.
-- The compact state stores ARGV[5], not `terms`, because `terms` may also have the common share.
local function admit(name, base, token, lease, permits, terms, wants, free, alone)
  alone = alone and free and name.card == 0 and lease ~= 'inf' and not (name.override or name.rate or name.cooled or name.clash)
  if alone and redis.call('ZCARD', WAITERS) == 0 then
    local reply = take_compact(name.us, name.keep, base, token, lease, permits, ARGV[5], name.fence, name.expiry, wants, name.peak or '', '', true)
    redis.call('DEL', INFO) -- last: if the script stops before, the next script expands the name again
    name.puts, name.dropped = {}, false -- so `finish` writes nothing
    return reply
  end
  local fence, ms, used = grant(name, token, permits, lease, terms, nil, false, not free)
  local reply = 'ok ' .. fence .. ' ' .. ms
  if free then return name.card > 1 and reply .. ' ' .. used or reply end
  local cools = name.paused and string.sub(name.paused, 1, 4) == 'cool'
  local why = (cools or name.opens > 0) and 'rate' or name.paused and 'paused' or 'full'
  if why ~= 'full' then
    count(name, why == 'rate' and 'v' or 'u', 1)
  end
  return reply .. ' ' .. used .. ' ' .. why
end
