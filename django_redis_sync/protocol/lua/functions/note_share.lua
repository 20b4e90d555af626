-- What a process has of a group, until `life` ms from now. Shares of the dead are dropped on the way.
local function note_share(name, process, entry, life)
  if entry == '' then redis.call('HDEL', SHARES, process)
  else redis.call('HSET', SHARES, process, whole(name, name.now + life) .. ' ' .. entry) end
  local all = redis.call('HGETALL', SHARES)
  for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^%d+') or 0) <= name.now then redis.call('HDEL', SHARES, all[i]) end
  end
  redis.call('PEXPIRE', SHARES, life)
end
