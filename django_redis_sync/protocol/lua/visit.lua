-- visit: ask for a permit for a job. Call this each time a task queue delivers the job.
-- If no permit is free, the task queue sends the job again later. Until then, the job is "away", and keeps its queue
-- position. Waiters come before jobs.
-- Each delivery has its own token. If a call is repeated with the same token, the reply is the same.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token lease id nth ticket wants terms keep overrides max_waiters job
--   token: the ID of this delivery, and of the lease that is granted to it
--   id: the ID of the job, a digest
--   nth: how many times the job was sent again
--   ticket: time of the first delivery: the TICKET of an earlier reply, or 0 in the first delivery
--   job: a text for operators
--   lease, wants, terms, keep, overrides, max_waiters: as in acquire
-- Returns one of these texts. Words in capitals are values.
--   "ok FENCE LEASE [USED]": as in acquire.
--   "later MS NTH TICKET RANK": send the job again after MS, with NTH and TICKET. RANK: number of jobs before this
--     job, or -1 for a copy (see answer_copy).
--   "drop copy": the job has ended, or a later delivery has replaced this one.
--   "drop cleared": an operator cleared the job.
--   "no REASON WAITING MEAN_HOLD LIMIT": as in acquire.
--   "kind OTHER": as in acquire.
--   "large LIMIT": as in acquire.
--   "gone": as in acquire.
--   "dead": as in acquire.
local token, _, id, nth, ticket, wants, terms, keep, overrides, max_waiters = unpack(ARGV)
local base = string.sub(LEASES, 1, -7)
local packed, us = compact_state(base)
if packed and packed ~= '' then
  expand(packed)
end
local name, record = open(token, keep, us, overrides)
-- the composer inserts here: count
if record then
  return answer_known(name, token, record)
end
local known, reply, vain, seen, again = redis.call('HGET', INFO, id), nil, 0, 0, false
if known then redis.call('DEL', NEVER) end -- allow a known job to write even if the memory is full (see retry_write)
local limit = name.override or tonumber(string.match(terms, '^%d+ (%d+)'))
nth, ticket = tonumber(nth), math.min(tonumber(ticket), name.us)
serve_others(name, base, id, terms)
if known then
  local state, next_one, last, since, times, copies = string.match(known, JOB)
  if copies == '1' or state ~= 'a' or nth < tonumber(next_one) then seen = 1 end -- 1: the task queue may send copies
  again = last == token
  ticket, vain = tonumber(since), state == 'a' and tonumber(times) or 0
  reply = answer_copy(name, base, id, known, nth, token)
  if reply == 'drop copy' then
    count(name, 'd', 1)
  end
end
if not again then -- if a call is repeated after a lost reply, count it only once
  count(name, 'v', 1)
end
if not reply and name.seen ~= wants then
  reply = mismatch(name, wants, 1, limit, redis.call('ZCARD', QUEUE))
end
local rank = not reply and redis.call('ZRANK', base .. 'places', id)
if not (reply or rank) then
  local crowd = crowd_beyond(name, base, tonumber(max_waiters), terms, limit)
  if crowd then
    reply = reject(name, 'full', crowd, limit, 'try')
  else
    ticket = ticket > 0 and ticket or name.us
    redis.call('ZADD', base .. 'places', string.format(name.format, ticket), id)
    rank = redis.call('ZRANK', base .. 'places', id)
  end
end
if rank then
  reply = take_or_come_back(name, base, rank, limit, nth, ticket, vain, seen)
end
finish(name)
return reply
