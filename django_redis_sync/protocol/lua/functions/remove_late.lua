-- Remove the data of the members in `late`, because their deadlines have passed. A member is one of these:
-- - a waiter that sent no heartbeat
-- - a new holder that did not claim its lease
-- - a new holder that has popped its wake-up message, and so has claimed its lease: it loses only the deadline
-- - a tombstone
-- - the channel of an event loop that sent no heartbeat
-- `me`: the token of the waiter whose heartbeat runs this script, or nil. `me` keeps its data.
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
