-- When the waiter of this rank has to ask again: ms from now. It counts as dead some time after that.
local function wait(name, token, rank)
  -- Only as many waiters as there are holders watch a lease end, each its own: no herd at any.
  local told = math.min(BEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
  local ends = rank < name.card and redis.call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
  if ends then told = math.max(1, math.min(told, tonumber(ends) - name.now + 1)) end
  local dead = name.now + told + PATIENCE
  local added = tonumber(redis.pcall('ZADD', WAITERS, string.format(name.format, dead), token))
  if not added then
    added = insist('ZADD', WAITERS, string.format(name.format, dead), token)
  end
  if added == 1 then name.new_waiters = true end
  name.latest = math.max(name.latest, dead)
  return {'wait', name.at, told, rank}
end
