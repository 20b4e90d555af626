-- Return the number of permits that a share holds, and its one waiter in the queue ('' for none). If the number was
-- stored before the name last had no leases, it is out of date, and the function returns 0 instead.
local function share_use(name, share)
  local since, held, first = string.match(redis.call('HGET', INFO, '/' .. share) or '', '^(%d+) (%d+) (.*)$')
  return name.card > 0 and since == name.shared and tonumber(held) or 0, first or ''
end
