-- Removing what is over.

-- The server's clock went back: no deadline may lie further ahead than it was meant to.
local function clamp()
  for _, key in ipairs({LEASES, WAITERS}) do
    for _, t in ipairs(call('ZREVRANGE', key, 0, BOUND - 1)) do
      local r = parse(call('HGET', INFO, t))
      local most = now + (key == LEASES and (r.lease or FIRST) or r.state == 'x' and BURIAL or ASLEEP)
      if tonumber(call('ZSCORE', key, t)) > most then call('ZADD', key, most, t) end
    end
  end
end

local function sweep_leases()
  for _ = 1, ROUNDS do
    local over = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, BOUND)
    for _, t in ipairs(over) do
      if drop(t) then count('c', 1) end
    end
    if #over < BOUND then return end
  end
end

local function sweep(me)
  if us < fence then clamp() end
  sweep_leases()
  for _, t in ipairs(call('ZRANGEBYSCORE', WAITERS, '-inf', now, 'LIMIT', 0, BOUND)) do
    if t ~= me then
      local woke = call('ZSCORE', LEASES, t) and call('EXISTS', WAKE .. t) == 0
      if woke then
        call('ZREM', WAITERS, t)
      elseif drop(t) then
        count('c', 1)
      end
    end
  end
end
