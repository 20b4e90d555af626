-- Return two values: the number of permits that a share holds, and the token of its waiter in the queue ('' for none).
-- If the name has been without leases since the number was stored, the number is outdated. Then return 0 instead.
local function share_use(name, share)
  local since, held, first = string.match(redis.call('HGET', INFO, '/' .. share) or '', '^(%d+) (%d+) (.*)$')
  return name.card > 0 and since == name.shared and tonumber(held) or 0, first or ''
end
