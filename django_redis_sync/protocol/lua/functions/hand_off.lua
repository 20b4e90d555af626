-- Grant free permits to the first waiters of the queue, and remove dead ones. `me`: the token whose heartbeat this
-- is, if any. If `me` is granted a lease, return the reply.
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
    local over = false
    if name.shared and deadline then
      over = is_over(name, terms)
    end
    if state == 'w' and deadline <= name.now and t ~= me then
      if name.shared then
        dead = dead + remove_dead_shares(name, me)
      else
        dead = dead + remove_dead(name, me)
      end
      name.more = dead >= 2 * CHUNK -- a script blocks the server: leave the rest to the next script
      if name.more then break end
    elseif state ~= 'w' or permits > limit then -- stale, or above a new limit: it would block the queue
      remove(name, t, state, terms, redis.call('ZSCORE', LEASES, t))
    elseif over then
      park_head(name, t, came, terms)
    elseif not fits(name, permits, limit) then
      name.head, name.head_ends = channel, deadline
      break -- later waiters with fewer permits must not starve the first
    else
      local fence, ms = grant(name, t, permits, lease, terms, came ~= '0' and came or ticket, t ~= me, false)
      if t ~= me then
        notify(name, t, channel, fence, ms)
      else
        redis.call('ZREM', WAITERS, t)
        reply = 'ok ' .. fence .. ' ' .. ms
      end
    end
  end
  return reply
end
