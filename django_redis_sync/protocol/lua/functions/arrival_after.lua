-- Return when a waiter comes that is to be behind `first` (its share's, in the queue) and `last` (parked).
local function arrival_after(name, first, last)
  local before = last and string.match(last, ' (%d+) %S+$')
  before = before or string.match(first ~= '' and redis.call('HGET', INFO, first) or '', '^w (%d+)')
  return math.max(name.us, (before or 0) + 1)
end
