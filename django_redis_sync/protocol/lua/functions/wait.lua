-- Return the reply to a waiter. The reply says after how many ms the waiter has to repeat its acquire. A waiter that is
-- late by PATIENCE counts as dead.
local function wait(name, token, rank, channel)
  -- The waiter at rank N watches the lease that expires N-th, so one waiter wakes up per expiring lease.
  local delay = math.min(HEARTBEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
  local ends = rank < name.card and redis.call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
  if ends then delay = math.min(delay, tonumber(ends) - name.now + 1) end
  if rank == 0 then -- the first waiter also watches for new holders that don't answer
    local late = redis.call('ZRANGE', WAITERS, '0', '0', 'WITHSCORES')[2]
    if late then delay = math.min(delay, tonumber(late) - name.now + 1) end
    if name.paused then
      delay = math.min(delay, pause_ends(name.paused) - name.now + 1)
    end
  elseif name.head ~= channel then -- the first waiter is of another event loop, or unknown
    -- If the first waiter is dead, the repeated acquire removes all dead waiters ahead. rank % 64 spreads the requests.
    delay = math.min(delay, (name.head_ends or name.now + ALIVE) - name.now + 1 + rank % 64)
  end
  delay = name.more and 1 or math.max(1, delay)
  set_deadline(name, token, name.now + delay + PATIENCE)
  return 'wait ' .. name.at .. ' ' .. string.format(name.format, delay) .. ' ' .. rank
end
