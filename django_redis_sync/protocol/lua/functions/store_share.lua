-- Store two facts about a share: `held`, the number of permits that it holds, and `first`, the token of its waiter in
-- the queue ('' for none). Write them now, not in `finish`, because this script may read them again.
local function store_share(name, share, held, first)
  if held == 0 and first == '' then
    redis.call('HDEL', INFO, '/' .. share)
  else
    redis.call('HSET', INFO, '/' .. share, name.shared .. ' ' .. string.format(name.format, held) .. ' ' .. first)
  end
end
