-- When the waiter of this rank has to ask again: ms from now. It counts as dead some time after that.
local function wait(name, token, rank, channel)
  -- Only as many waiters as there are holders watch a lease end, each its own: no herd at any.
  local told = math.min(BEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
  local ends = rank < name.card and redis.call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
  if ends then told = math.min(told, tonumber(ends) - name.now + 1) end
  if rank == 0 then -- the first watches for winners that do not wake
    local late = redis.call('ZRANGE', WAITERS, '0', '0', 'WITHSCORES')[2]
    if late then told = math.min(told, tonumber(late) - name.now + 1) end
  elseif name.head ~= channel then -- the head of another event loop, or a head that was not looked at
    -- Whatever is dead ahead goes when the head does; not all come in the same millisecond.
    told = math.min(told, (name.head_ends or name.now + ALIVE) - name.now + 1 + rank % 64)
  end
  told = name.more and 1 or math.max(1, told)
  local dead = name.now + told + PATIENCE
  local added = tonumber(redis.pcall('ZADD', WAITERS, string.format(name.format, dead), token))
  if not added then
    added = insist('ZADD', WAITERS, string.format(name.format, dead), token)
  end
  if added == 1 then name.new_waiters = true end
  if dead > name.latest then name.latest = dead end
  return 'wait ' .. name.at .. ' ' .. whole(name, told) .. ' ' .. rank
end
