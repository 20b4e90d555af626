-- Every verb that changes something ends here: the fields that changed, then the expiry of the keys.
if extra ~= stored then put('#extra', whole(extra)) end
if recount then -- what kept the keys for ever is gone: find what is the latest now
  expiry = 0
  for _, key in ipairs({LEASES, WAITERS}) do
    latest = math.max(latest, tonumber(call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0))
  end
  if override or paused then latest = math.huge end
end
local later = (recount or puts[1] or latest > now) and latest + GRACE > expiry
if later then
  expiry = latest + 2 * GRACE
  put('#expiry', whole(expiry))
  fresh = {LEASES, INFO}
  for _, key in ipairs({QUEUE, WAITERS}) do -- what is not ours stays as it is
    if tonumber(redis.pcall('ZCARD', key)) then fresh[#fresh + 1] = key end
  end
end
if puts[1] then call('HSET', INFO, unpack(puts)) end
for i = 1, #fresh do
  if expiry < math.huge then call('PEXPIREAT', fresh[i], whole(expiry))
  elseif later then call('PERSIST', fresh[i]) end
end
