-- Return the number of permits of a share, and its waiter in the queue ('' for none). A number that was stored before
-- the leases were lost is invalid.
local function share_use(name, share)
  local since, held, first = string.match(redis.call('HGET', INFO, '/' .. share) or '', '^(%d+) (%d+) (.*)$')
  return name.card > 0 and since == name.shared and tonumber(held) or 0, first or ''
end
