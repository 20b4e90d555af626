-- Grant free permits to the first waiters of the queue, in order. Remove dead waiters at the head of the queue.
-- `me`: the token of the calling waiter, or nil for another caller. Return the reply to this waiter, or nil.
local function hand_off(name, me)
  local reply, dead = nil, 0
  for _ = 1, BOUND do
    local head = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
    local t, ticket = head[1], head[2]
    if not t then break end
    local state, _, came, lease, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
    local permits, limit, channel = string.match(terms or '', TERMS)
    permits, limit = tonumber(permits), name.override or tonumber(limit)
    local deadline = state == 'w' and deadline_of(name, t, channel)
    local share, over
    if name.shared and deadline then -- the share may have got permits since this waiter entered the queue
      local bound
      bound, share = share_of(terms)
      over = share and not share_fits(share_use(name, share), permits, bound)
    end
    if state == 'w' and deadline <= name.now and t ~= me then
      if name.shared then
        dead = dead + remove_dead_shares(name, me)
      else
        dead = dead + remove_dead(name, QUEUE, redis.call('ZRANGE', QUEUE, '0', CHUNK - 1), me)
      end
      name.more = dead >= 2 * CHUNK -- leave the rest to the next script, because scripts block the server
      if name.more then break end
    elseif state ~= 'w' or permits > limit or permits > name.most then -- no longer a waiter, or it needs more permits than a new limit
      remove(name, t, state, terms, redis.call('ZSCORE', LEASES, t))
    elseif over then
      redis.call('ZREM', QUEUE, t)
      redis.call('ZADD', PARKED, '0', parked_as(share, came, t))
      name.new_queue = true
      store_share(name, share, share_use(name, share), '')
    elseif not fits(name, permits, limit) then
      name.head, name.head_ends = channel, deadline
      if t ~= me and name.opens > 0 then
        nudge(name, t, channel)
      end
      break -- later waiters must not pass the first, even if they need fewer permits
    else
      local fence, ms = grant(name, t, permits, lease, terms, came ~= '0' and came or ticket, t ~= me, false)
      if t ~= me then
        notify(name, t, channel, fence, ms, deadline)
      else
        redis.call('ZREM', WAITERS, t)
        reply = 'ok ' .. fence .. ' ' .. ms
      end
      if not me and (name.override or not name.clash) and name.card + name.extra >= limit then break end -- the limit of all waiters
    end
  end
  return reply
end
