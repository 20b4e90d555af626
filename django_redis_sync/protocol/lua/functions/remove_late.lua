-- Remove tokens whose deadline has passed: a waiter that did not ask again, a new holder that did not wake
-- up, a tombstone. A new holder that woke up stays, without a deadline; so does `me`, which is asking.
local function remove_late(name, late, me)
  for i = 1, #late do
    local t = late[i]
    local ends = redis.call('ZSCORE', LEASES, t)
    if t == me then -- stays
    elseif ends and redis.call('EXISTS', wake_key(t)) == 0 then -- it popped the message: it woke up
      redis.call('ZREM', WAITERS, t)
    else
      local state, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
      if state or ends then
        remove(name, t, state, terms, ends)
      else -- an event loop without a heartbeat
        redis.call('ZREM', WAITERS, t)
        name.dropped = true
      end
      if ends then
        count(name, 'c', 1)
      end
    end
  end
end
