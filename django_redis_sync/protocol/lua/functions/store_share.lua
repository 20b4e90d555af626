-- Store what a share has, at once: the same script may read it again. Keep nothing of an idle share.
local function store_share(name, share, held, first)
  if held == 0 and first == '' then
    redis.call('HDEL', INFO, '/' .. share)
  else
    redis.call('HSET', INFO, '/' .. share, name.shared .. ' ' .. string.format(name.format, held) .. ' ' .. first)
  end
end
