-- Check if the queue is full for a job. If there are at least `max_waiters` waiters and away jobs, and no permit is
-- free for the job, return their number. Otherwise return nil.
local function crowd_beyond(name, base, max_waiters, terms, limit)
  local crowd = redis.call('ZCARD', base .. 'places') + waiting_of(name)
  if crowd < max_waiters then return nil end
  local bound, share = share_of(terms)
  local fitting = not (name.shared and share) or share_fits(share_use(name, share), 1, bound)
  return not (fitting and fits(name, 1, limit)) and crowd or nil
end
