-- Store permits and waiter of a share. Write at once, because the same script may read them again. Remove an idle share.
local function store_share(name, share, held, first)
  if held == 0 and first == '' then
    redis.call('HDEL', INFO, '/' .. share)
  else
    redis.call('HSET', INFO, '/' .. share, name.shared .. ' ' .. string.format(name.format, held) .. ' ' .. first)
  end
end
