-- Stores the fields that changed, and moves the expiry of the keys when something outlives it.
local function finish(name)
  local puts, latest, expiry = name.puts, name.latest, name.expiry
  if name.extra ~= name.stored then put(name, '#extra', whole(name, name.extra)) end
  if name.recount then -- what kept the keys for ever is gone: find what is the latest now
    expiry = 0
    for _, key in ipairs({LEASES, WAITERS}) do
      latest = math.max(latest, tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0))
    end
    local marks = redis.call('HMGET', INFO, '#limit', '#paused') -- its own, not those of its policy
    if marks[1] or marks[2] then latest = math.huge end
  end
  local later = (name.recount or puts[1] or latest > name.now) and latest + GRACE > expiry
  if later then
    expiry = latest + 2 * GRACE -- further than it has to be: most scripts then leave it as it is
    put(name, '#expiry', whole(name, expiry))
  end
  if puts[1] and not tonumber(redis.pcall('HSET', INFO, unpack(puts))) then
    insist('HSET', INFO, unpack(puts))
  end
  if later then
    expire(name, LEASES, expiry)
    expire(name, INFO, expiry)
    for _, key in ipairs({QUEUE, WAITERS}) do -- what is not ours stays as it is
      if tonumber(redis.pcall('ZCARD', key)) then expire(name, key, expiry) end
    end
  else -- the keys that were made here
    if name.new_leases then expire(name, LEASES, expiry) end
    if name.new_queue then expire(name, QUEUE, expiry) end
    if name.new_waiters then expire(name, WAITERS, expiry) end
  end
end
