-- Remove expired leases and dead waiters, and grant the permits that are free. `me`: the token of the waiter whose
-- heartbeat runs this script, or nil for a newcomer. Return two values. The first is the reply to `me`, or nil if `me`
-- got no lease. The second is the number of waiters, but only for a newcomer.
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
