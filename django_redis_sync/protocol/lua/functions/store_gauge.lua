-- Store what a process holds of a group, for `life` ms. Remove the gauges of dead processes.
local function store_gauge(name, process, entry, life)
  if entry == '' then
    redis.call('HDEL', SHARES, process)
  else
    redis.call('HSET', SHARES, process, whole(name, name.now + life) .. ' ' .. entry)
  end
  local all = redis.call('HGETALL', SHARES)
  for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^%d+') or 0) <= name.now then redis.call('HDEL', SHARES, all[i]) end
  end
  redis.call('PEXPIRE', SHARES, life)
end
