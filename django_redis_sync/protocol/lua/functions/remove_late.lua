-- Remove the members of WAITERS in the list `late`. Their deadlines have passed. Each member is one of these:
-- - a waiter that sent no heartbeat
-- - a new holder that did not claim its lease
-- - a tombstone
-- - the channel of an event loop that sent no heartbeat
-- If a new holder has popped its wake-up message, it has claimed its lease. Then only its deadline is removed.
-- `me`: the token of the calling waiter, which is not removed, or nil.
local function remove_late(name, late, me)
  for i = 1, #late do
    local t = late[i]
    local ends = redis.call('ZSCORE', LEASES, t)
    if t == me then -- keep it
    elseif ends and redis.call('EXISTS', wake_key(t)) == 0 then -- the new holder has popped its wake-up message
      redis.call('ZREM', WAITERS, t)
    else
      local state, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
      if state or ends then
        remove(name, t, state, terms, ends)
      else -- the channel of a silent event loop
        redis.call('ZREM', WAITERS, t)
        name.dropped = true
      end
      if ends then
        count(name, 'c', 1)
      end
    end
  end
end
