-- Remove expired leases and dead waiters, and grant the permits that are free.
-- `me`: the token of the calling waiter, or nil for another caller. Return two values: the reply to this waiter (nil
-- if it got no lease), and the number of waiters (only if `me` is nil).
local function make_room(name, me)
  local waiting, reply = me and 1 or waiting_of(name), nil
  if waiting > 0 or name.card > 0 then
    sweep(name, me)
  end
  if me or waiting > 0 and (name.dropped or name.rate) then -- the rate may have opened since the last script
    reply = hand_off(name, me)
    waiting = me or waiting_of(name)
  end
  return reply, waiting
end
