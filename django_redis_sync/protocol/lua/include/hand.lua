-- Handing over: what is free goes to the heads of the queue. Drops dead heads on the way.
-- In: me, who asks again, if anybody. Out: reply, what it is to be told if it was among them.
for _ = 1, BOUND do
  local head = call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
  local t, ticket = head[1], head[2]
  if not t then break end
  local state, _, _, lease, permits, limit, channel, label =
    string.match(call('HGET', INFO, t) or '', RECORD)
  local many, most = tonumber(permits), override or tonumber(limit)
  local deadline = tonumber(call('ZSCORE', WAITERS, t) or 0)
  if state ~= 'w' or (deadline <= now and t ~= me) or many > most then
    local ends = call('ZSCORE', LEASES, t)
-- @include removed
  else
-- @include fits
    if not fit then break end
    local handed = t ~= me
-- @include granted
    if handed then
      local element = given .. ' ' .. at .. ' ' .. whole(ms)
      call('ZADD', WAITERS, whole(now + math.min(CLAIM, ms)), t)
      -- pcall: with the memory full, or a channel that an ACL denies, nobody is woken, and it learns
      -- of its grant when it asks again.
      redis.pcall('RPUSH', WAKE .. t, element)
      redis.pcall('PEXPIREAT', WAKE .. t, whole(now + ms + GRACE))
      if channel ~= '-' then redis.pcall('PUBLISH', channel, t .. ' ' .. element) end
    else
      call('ZREM', WAITERS, t)
      reply = {'ok', given, whole(ms)}
    end
  end
end
