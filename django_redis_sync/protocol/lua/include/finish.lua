-- Every mutating verb ends here: the fields that changed, then the expiry of the keys.
local function finish(reply)
  if extra ~= stored then put('#extra', whole(extra)) end
  if recount then -- what kept the keys for ever is gone: find what is the latest now
    expiry = 0
    for _, key in ipairs({LEASES, WAITERS}) do
      latest = math.max(latest, tonumber(call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0))
    end
    if override or paused then latest = math.huge end
  end
  local later = (recount or #puts > 0 or next(fresh)) and latest + GRACE > expiry
  if later then
    expiry = latest + 2 * GRACE
    put('#expiry', whole(expiry))
    fresh = {[LEASES] = true, [INFO] = true}
    for _, key in ipairs({QUEUE, WAITERS}) do
      fresh[key] = tonumber(redis.pcall('ZCARD', key)) and true -- what is not ours stays as it is
    end
  end
  if #puts > 0 then call('HSET', INFO, unpack(puts)) end
  for key in pairs(fresh) do
    if expiry < math.huge then call('PEXPIREAT', key, whole(expiry))
    elseif later then call('PERSIST', key) end
  end
  return reply
end
