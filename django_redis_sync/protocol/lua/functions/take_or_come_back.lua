-- Grant a permit to a job if one is free for it. Otherwise, store when its task queue has to send it again. Return the
-- reply.
-- `rank`: number of jobs before this job. `limit`: the limit in force. `nth`: number of this delivery. `ticket`,
-- `vain`, `seen`: see note_job.
local function take_or_come_back(name, base, rank, limit, nth, ticket, vain, seen)
  local token, lease, id, _, _, _, terms, _, _, _, job = unpack(ARGV)
  local share, fitting, at = '', true, string.format(name.format, ticket)
  local own, shares = nil, 1
  if name.shared then
    local bound, text = share_of(terms)
    if not text then -- a job without a share belongs to the common share
      bound, text = '0', ''
      terms = string.gsub(terms, '^(%d+ %d+ %S+ )', '%1/0/ ')
    end
    share, fitting = '/' .. text, share_fits(share_use(name, text), 1, bound)
    -- Shares get permits alternately. So estimate the rank of the job: the number of earlier jobs of its share, times
    -- the number of shares with jobs.
    local placed = base .. 'placed'
    own = text .. ' ' .. at .. ' ' .. id
    redis.call('ZADD', placed, '0', own)
    shares = #shares_with_jobs(placed)
    rank = redis.call('ZLEXCOUNT', placed, '[' .. text .. ' ', '(' .. own) * shares
  end
  -- the composer inserts here: note_job
  local mean = math.max(1, tonumber(redis.call('HGET', INFO, '#hold') or AWAY / 2))
  local nearest = math.ceil(limit * (1 + AWAY / mean))
  if rank >= nearest then
    rank = without_lost(name, base, rank, nearest, own, shares)
  end
  local near = fitting and rank < nearest
  local first = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')[2] -- ticket of the first waiter, if any
  if near and not (first and tonumber(first) < ticket) and fits(name, 1, limit) then
    redis.call('ZREM', base .. 'places', id)
    if name.shared then redis.call('ZREM', base .. 'placed', own) end
    note_job(name, base, id, 'r', nth, token, ticket, 0, seen, share, job, name.now)
    local fence, ms, used = grant(name, token, 1, lease, terms, nth > 0 and ticket, false, false)
    return 'ok ' .. fence .. ' ' .. ms .. (name.card > 1 and ' ' .. used or '')
  end
  -- Estimate when a permit will be free. The delay is at least a quarter of the time since the last grant.
  local ms = math.max((rank + 1) * mean / limit * 0.9, name.fence > 0 and (name.now - name.fence / 1000) / 4 or 0)
  if name.paused then
    ms = math.min(ms, pause_ends(name.paused) - name.now + 1)
  end
  ms = math.ceil(math.max(SOONEST, math.min(ms, LATEST)))
  if near and not name.paused then vain = vain + 1 end
  local kept_until = tonumber(string.match(name.places, '^%d+') or 0) + TURN
  if vain >= STARVED and name.now >= kept_until + REST then
    name.places = string.format(name.format, name.now + ms) .. ' 0 ' .. id
    put(name, '#places', name.places)
  end
  note_job(name, base, id, 'a', nth + 1, token, ticket, vain, seen, share, job, name.now + ms)
  return 'later ' .. string.format(name.format, ms) .. ' ' .. nth + 1 .. ' ' .. at .. ' ' .. rank
end
