-- Remove expired leases and waiters, and grant the free permits. `me`: the token whose heartbeat this is, if any.
-- Return the reply if `me` is granted a lease, and the number of waiters.
local function make_room(name, me)
  local waiting, reply = me and 1 or waiting_of(name), nil
  if waiting > 0 or name.card > 0 then
    sweep(name, me)
  end
  if me or waiting > 0 and name.dropped then
    reply = hand_off(name, me)
    waiting = me or waiting_of(name)
  end
  return reply, waiting
end
