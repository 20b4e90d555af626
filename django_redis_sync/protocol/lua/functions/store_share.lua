-- Store the number of permits that a share holds, and its waiter in the queue. Write both here and not in `finish`,
-- because this script may read them again.
local function store_share(name, share, held, first)
  if held == 0 and first == '' then
    redis.call('HDEL', INFO, '/' .. share)
  else
    redis.call('HSET', INFO, '/' .. share, name.shared .. ' ' .. string.format(name.format, held) .. ' ' .. first)
  end
end
