-- Granting, to the caller itself or by hand-over.
local function limit_of(r) return override or r.limit end

local function fits(r)
  if paused then return false end
  if r.permits == 0 then return card == 0 end
  return card + extra + r.permits <= limit_of(r)
end

-- The fence grows with every grant, across lost keys too as long as the clock does not go back.
-- A hand-over grants FIRST at most, and nobody gets "for ever" before it said that it is there.
-- Returns the caller's answer and the lease in ms.
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
  return {'ok', r.fence, whole(lease)}, lease
end
