-- Removing: always everything that a token has, so that nothing of it can be believed later.
-- Returns whether a holder lost its lease by this.
local function drop(t, text)
  local r = parse(text or call('HGET', INFO, t))
  local ends = call('ZSCORE', LEASES, t)
  if ends then
    call('ZREM', LEASES, t)
    card = card - 1
    extra = card > 0 and extra - weight(r.permits or 1) + 1 or 0
    if ends == 'inf' then recount = true end
  end
  if r.state ~= 'h' then
    call('ZREM', QUEUE, t)
    call('ZREM', WAITERS, t)
    call('DEL', WAKE .. t)
  end
  call('HDEL', INFO, t)
  return ends and r.state ~= 'k'
end

-- A buried token is never granted again: late copies of its acquire find this.
local function bury(t)
  call('HSET', INFO, t, 'x 0 0 0 0 - ')
  fresh[INFO] = true
  place(WAITERS, now + BURIAL, t)
end

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
