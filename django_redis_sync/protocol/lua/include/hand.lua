-- Granting: to the caller itself, or by hand-over to the head of the queue.
local function limit_of(r) return override or r.limit end

local function fits(r)
  if paused then return false end
  if r.permits == 0 then return card == 0 end
  return card + extra + r.permits <= limit_of(r)
end

-- The fence grows with every grant, across lost keys too as long as the clock does not go back.
-- A hand-over grants FIRST at most, and nobody gets "for ever" before it said that it is there.
local function give(t, r, handed)
  local ticket = r.state == 'w' and call('ZSCORE', QUEUE, t)
  fence = math.max(fence + 1, us)
  local lease = (handed or r.lease == math.huge) and math.min(r.lease, FIRST) or r.lease
  r.fence, r.state = whole(fence), handed and 'g' or 'h'
  place(LEASES, now + lease, t)
  card, extra = card + 1, extra + weight(r.permits) - 1
  put(t, format(r))
  put('#fence', r.fence)
  if ticket then
    call('ZREM', QUEUE, t)
    count('w', PAIR + math.max(0, math.floor((us - ticket) / 1000)))
  else
    count('g', 1)
  end
  peaked(r.permits == 0 and 1 or card + extra)
  if handed then
    local element = table.concat({r.fence, whole(now), whole(lease)}, ' ')
    place(WAITERS, now + math.min(CLAIM, lease), t)
    call('RPUSH', WAKE .. t, element)
    call('PEXPIREAT', WAKE .. t, whole(now + lease + GRACE))
    if r.channel ~= '-' then call('PUBLISH', r.channel, t .. ' ' .. element) end
  end
  return {'ok', r.fence, whole(lease)}
end

-- Gives what is free to the heads of the queue, dropping dead ones on the way. Returns what
-- `me` is to be told, if it was among them.
local function hand(me)
  local mine
  for _ = 1, BOUND do
    local t = call('ZRANGE', QUEUE, 0, 0)[1]
    if not t then break end
    local text, deadline = call('HGET', INFO, t), tonumber(call('ZSCORE', WAITERS, t) or 0)
    local r = parse(text)
    if r.state ~= 'w' or (deadline <= now and t ~= me) or r.permits > limit_of(r) then
      drop(t, text)
    elseif not fits(r) then
      break
    elseif t == me then
      call('ZREM', WAITERS, t)
      mine = give(t, r, false)
    else
      give(t, r, true)
    end
  end
  return mine
end
