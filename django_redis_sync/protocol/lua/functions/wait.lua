-- Return the reply that lets the caller wait. It says after how many ms the waiter has to repeat its acquire. A waiter
-- that is late by PATIENCE counts as dead.
local function wait(name, token, rank, channel, permits)
  local delay = math.min(HEARTBEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
  local exact = '' -- ' rate' if the caller must be punctual, because the rate opens, or a pause ends
  -- The waiter at rank N wakes up when the N-th lease expires. So an expiring lease wakes up only one waiter.
  local ends = rank < name.card and redis.call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
  if ends then delay = math.min(delay, tonumber(ends) - name.now + 1) end
  if rank == 0 then -- the first waiter also wakes up at the earliest deadline in WAITERS
    local late = redis.call('ZRANGE', WAITERS, '0', '0', 'WITHSCORES')[2]
    if late then delay = math.min(delay, tonumber(late) - name.now + 1) end
    if name.paused then
      local left = pause_ends(name.paused) - name.now + 1
      if left < delay then delay, exact = left, ' rate' end
    end
  elseif name.head ~= channel then -- the first waiter's event loop is another, or unknown
    -- Ask again when the first waiter may be dead. rank % 64 spreads the requests of different waiters.
    delay = math.min(delay, (name.head_ends or name.now + ALIVE) - name.now + 1 + rank % 64)
  end
  if name.rate and not name.paused then -- the waiter at rank N wakes up when the rate allows N more permits than its own
    local opens, nth = rate_opens(name, rank + math.max(1, permits))
    if opens > 0 and opens + nth < delay then
      delay, exact = opens + nth, ' rate'
    end
  end
  delay = name.more and 1 or math.max(1, delay)
  set_deadline(name, token, name.now + delay + PATIENCE)
  return 'wait ' .. name.at .. ' ' .. string.format(name.format, delay) .. ' ' .. rank .. exact
end
