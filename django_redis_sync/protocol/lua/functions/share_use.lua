-- Return the number of permits that a share holds, and the token of its waiter in the queue ('' for none). The stored
-- number is out of date if the name had no leases at some time after it was stored. In this case, the number is 0.
local function share_use(name, share)
  local since, held, first = string.match(redis.call('HGET', INFO, '/' .. share) or '', '^(%d+) (%d+) (.*)$')
  return name.card > 0 and since == name.shared and tonumber(held) or 0, first or ''
end
