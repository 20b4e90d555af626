-- Return how many permits a share has, and which of its waiters is in the queue ('' for none). A count that
-- was stored before the leases were lost is not valid.
local function share_use(name, share)
  local since, held, first = string.match(redis.call('HGET', INFO, '/' .. share) or '', '^(%d+) (%d+) (.*)$')
  return name.card > 0 and since == name.shared and tonumber(held) or 0, first or ''
end
