-- Return when the waiter at this rank has to ask again, in ms from now. Some time after that, it counts as dead.
local function wait(name, token, rank, channel)
  -- The waiter at rank N watches the lease that expires N-th: no thundering herd.
  local told = math.min(HEARTBEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
  local ends = rank < name.card and redis.call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
  if ends then told = math.min(told, tonumber(ends) - name.now + 1) end
  if rank == 0 then -- the first watches for new holders that don't wake up
    local late = redis.call('ZRANGE', WAITERS, '0', '0', 'WITHSCORES')[2]
    if late then told = math.min(told, tonumber(late) - name.now + 1) end
    if name.paused then
      told = math.min(told, pause_ends(name.paused) - name.now + 1)
    end
  elseif name.head ~= channel then -- the head of another event loop, or an unknown head
    -- All dead waiters ahead go with the head; rank % 64 spreads the requests.
    told = math.min(told, (name.head_ends or name.now + ALIVE) - name.now + 1 + rank % 64)
  end
  told = name.more and 1 or math.max(1, told)
  local dead = name.now + told + PATIENCE
  local added = tonumber(redis.pcall('ZADD', WAITERS, string.format(name.format, dead), token))
  if not added then
    added = retry_write('ZADD', WAITERS, string.format(name.format, dead), token)
  end
  if added == 1 then name.new_waiters = true end
  if dead > name.latest then name.latest = dead end
  return 'wait ' .. name.at .. ' ' .. whole(name, told) .. ' ' .. rank
end
