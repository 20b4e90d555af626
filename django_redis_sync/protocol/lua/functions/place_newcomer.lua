-- Grant permits to a newcomer, reject the newcomer, or append it to the queue. Return the reply. If the newcomer
-- waits, return nil and its rank in the queue.
local function place_newcomer(name, base, permits, limit, waiting)
  if name.shared then
    return place_in_share(name, base, permits, limit, waiting)
  end
  local token, lease, how, wants, terms, _, overrides, max_waiters, fair, compact = unpack(ARGV)
  local free = fits(name, permits, limit)
  if free and waiting > 0 then -- fair=0: the newcomer passes a first waiter that came less than HEARTBEAT ago
    local head = fair == '0' and redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
    free = head and math.abs(name.now - head / 1000) < HEARTBEAT -- abs, because the clock may have been set back
  end
  if free or how == 'shadow' then
    return admit(name, base, token, lease, permits, terms, wants, free, waiting == 0 and compact ~= '0' and (not overrides or overrides == '-'))
  elseif how == 'wait' and not crowded(name, waiting, max_waiters) then
    enter_queue(name, token, waiting == 0 and string.format(name.format, name.us))
    enqueue(name, token, lease, terms, '0')
    return nil, waiting
  elseif name.more then
    return 'more'
  else
    return reject(name, 'full', waiting, limit, how)
  end
end
