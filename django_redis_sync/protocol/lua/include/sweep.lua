-- Removes what is over. In: me, who asks again, if anybody: its deadline does not count.
if us < fence then -- the clock went back: no deadline may lie further ahead than it was meant to
  for _, key in ipairs({LEASES, WAITERS}) do
    for _, t in ipairs(call('ZREVRANGE', key, 0, BOUND - 1)) do
      local state, _, _, lease = string.match(call('HGET', INFO, t) or '', RECORD)
      local most = key == LEASES and (tonumber(lease) or FIRST) or state == 'x' and BURIAL or ASLEEP
      if tonumber(call('ZSCORE', key, t)) > now + most then call('ZADD', key, now + most, t) end
    end
  end
end
for _ = 1, ROUNDS do
  local over = call('ZRANGEBYSCORE', LEASES, '-inf', at, 'LIMIT', '0', BOUND)
  for i = 1, #over do
    local t = over[i]
    local state, _, _, _, permits = string.match(call('HGET', INFO, t) or '', RECORD)
    local ends = call('ZSCORE', LEASES, t)
-- @include removed
    if state ~= 'k' then -- who kept its permits had given its lease back
      local what, n = 'c', 1
-- @include counted
    end
  end
  if #over < BOUND then break end
end
local late = call('ZRANGEBYSCORE', WAITERS, '-inf', at, 'LIMIT', '0', BOUND)
for i = 1, #late do
  local t, ends = late[i], call('ZSCORE', LEASES, late[i])
  if t == me then
  elseif ends and call('EXISTS', WAKE .. t) == 0 then -- it woke
    call('ZREM', WAITERS, t)
  else
    local state, _, _, _, permits = string.match(call('HGET', INFO, t) or '', RECORD)
-- @include removed
    if ends and state ~= 'k' then
      local what, n = 'c', 1
-- @include counted
    end
  end
end
