-- Return an arrival for a newcomer to a share: later than those of `first`, its share's waiter in the queue, and of
-- `last`, its last parked waiter.
local function arrival_after(name, first, last)
  local before = last and string.match(last, ' (%d+) %S+$')
  before = before or string.match(first ~= '' and redis.call('HGET', INFO, first) or '', '^w (%d+)')
  return math.max(name.us, (before or 0) + 1)
end
