-- Grant permits to a newcomer of a name with shares, reject the newcomer, or let it wait. Return the reply. If the
-- newcomer waits, return nil and its rank. A caller without a share belongs to the common share.
-- A newcomer gets permits immediately only in shadow mode, or if all of this is true:
-- - The queue is empty.
-- - No waiter of the newcomer's share is parked, that is, waits outside the queue.
-- - The limit of the name and the limit of the share allow it.
local function place_in_share(name, base, permits, limit, waiting)
  local token, lease, how, wants, terms, _, overrides, max_waiters, _, compact = unpack(ARGV)
  local bound, share = share_of(terms)
  local free, queued = fits(name, permits, limit), waiting
  local alone = not share and waiting == 0 and compact ~= '0' and (not overrides or overrides == '-')
  if not share then
    bound, share = '0', ''
    local head, label = string.match(terms, '^(%d+ %d+ %S+ )(.*)$')
    terms = head .. '/0/ ' .. label
  end
  local held, first = share_use(name, share)
  local fitting, last = share_fits(held, permits, bound), nil
  if waiting > 0 then
    last = redis.call('ZREVRANGEBYLEX', PARKED, '(' .. share .. '!', '[' .. share .. ' ', 'LIMIT', '0', '1')[1]
    queued = redis.call('ZCARD', QUEUE)
  end
  free = free and fitting and queued == 0 and not last
  if free or how == 'shadow' then
    if not fitting then name.opens = 0 end -- the reason is the share, and not the rate
    local reply = admit(name, base, token, lease, permits, terms, wants, free, alone)
    if fitting or name.paused then return reply end
    count(name, 'b', 1)
    return string.sub(reply, 1, -5) .. 'share' -- replace "full" at the end of the reply
  elseif how == 'wait' and not crowded(name, waiting, max_waiters) then
    if fitting and first == '' and not last then
      enter_queue(name, token, false)
      store_share(name, share, held, token)
      enqueue(name, token, lease, terms, string.format(name.format, name.us))
      return nil, queued
    end
    -- The newcomer comes after the last waiter of its share: a parked one or, if none is parked, the one in the queue.
    local before = last and string.match(last, ' (%d+) %S+$')
    before = before or string.match(first ~= '' and redis.call('HGET', INFO, first) or '', '^w (%d+)')
    local arrival = string.format(name.format, math.max(name.us, (before or 0) + 1))
    local parked = parked_as(share, arrival, token)
    redis.call('ZADD', PARKED, '0', parked)
    name.new_queue = true
    enqueue(name, token, lease, terms, arrival)
    return nil, queued + redis.call('ZRANK', PARKED, parked)
  elseif name.more then
    return 'more'
  elseif fitting then
    return reject(name, 'full', waiting, limit, how)
  end
  return reject(name, 'share', waiting_in_share(share, first), math.min(limit, tonumber(bound)), how)
end
