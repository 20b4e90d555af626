-- Handing over: what is free goes to the heads of the queue.

-- Grants to one that waits elsewhere, and wakes it.
local function hand_to(t, r)
  local _, lease = give(t, r, true)
  local element = table.concat({r.fence, whole(now), whole(lease)}, ' ')
  place(WAITERS, now + math.min(CLAIM, lease), t)
  -- pcall: with the memory full, or a channel that an ACL denies, nobody is woken, and it learns of
  -- its grant when it asks again.
  redis.pcall('RPUSH', WAKE .. t, element)
  redis.pcall('PEXPIREAT', WAKE .. t, whole(now + lease + GRACE))
  if r.channel ~= '-' then redis.pcall('PUBLISH', r.channel, t .. ' ' .. element) end
end

-- Drops dead heads on the way. Returns what `me` is to be told, if it was among them.
local function hand(me)
  local mine
  for _ = 1, BOUND do
    local t = call('ZRANGE', QUEUE, 0, 0)[1]
    if not t then break end
    local r, deadline = parse(call('HGET', INFO, t)), tonumber(call('ZSCORE', WAITERS, t) or 0)
    if r.state ~= 'w' or (deadline <= now and t ~= me) or r.permits > limit_of(r) then
      drop(t, r)
    elseif not fits(r) then
      break
    elseif t == me then
      call('ZREM', WAITERS, t)
      mine = give(t, r, false)
    else
      hand_to(t, r)
    end
  end
  return mine
end
