-- Count and answer a rejection of a share that has its limit (`bound`; `most`: the limit of all): how many of the
-- share wait, and the lower of both limits. `first`: its waiter that is in the queue ('' for none).
local function answer_share(name, share, bound, first, most)
  count(name, 'n', 1)
  if not name.paused then
    count(name, 'b', 1)
  end
  local waiting = redis.call('ZLEXCOUNT', PARKED, '[' .. share .. ' ', '(' .. share .. '!') + (first == '' and 0 or 1)
  return answer_no(name, 'share ', waiting, math.min(most, tonumber(bound)))
end
