-- visit: ask for a permit for a job that its task queue has delivered. The reply is a lease, or the time after which
-- the job has to be sent again. Until then, the job is "away" and keeps its place. Live waiters come before jobs.
-- Each delivery has a token of its own, which is also the token of a lease that is granted to it. If a call is repeated
-- with the same token, the reply is the same.
-- KEYS leases never
-- ARGV token lease place nth ticket wants terms keep mark max_waiters job
--   place: the ID of the job, a digest
--   nth: how many times the job was sent again
--   ticket: the time of the first delivery, which an earlier reply gave; 0 for the first delivery
--   job: a text for operators
--   lease, wants, terms, keep, mark, max_waiters: as in acquire
-- Returns one of these texts. Words in capitals are values.
--   ok FENCE LEASE [USED]: as in acquire.
--   later MS NTH TICKET RANK: the job has to be sent again after MS. NTH: the number of the next delivery. TICKET:
--     the ticket to send with it. RANK: the number of jobs before this one, or -1 for a copy (see answer_copy).
--   drop copy: the job has ended, or a later delivery replaced this one.
--   drop cleared: an operator cleared the job.
--   no REASON WAITING MEAN_HOLD LIMIT: as in acquire. This is also true for the replies below.
--   kind OTHER
--   large LIMIT
--   gone
--   dead
local token, _, place, nth, ticket, wants, terms, keep, mark, max_waiters = unpack(ARGV)
local base = string.sub(LEASES, 1, -7)
local packed, us = compact_state(base)
if packed and packed ~= '' then
  expand(packed)
end
local name, record = open(token, keep, us, mark)
-- insert here the functions: count
if record then
  return answer_known(name, token, record)
end
local known, reply, vain, seen, again = redis.call('HGET', INFO, place), nil, 0, 0, false
if known then redis.call('DEL', NEVER) end -- if the memory is full, only newcomers are denied
local limit = name.override or tonumber(string.match(terms, '^%d+ (%d+)'))
nth, ticket = tonumber(nth), math.min(tonumber(ticket), name.us)
serve_others(name, base, place, terms)
if known then
  local state, next_one, last, since, times, copies = string.match(known, PLACE)
  if copies == '1' or state ~= 'a' or nth < tonumber(next_one) then seen = 1 end -- the job may be delivered again
  again = last == token
  ticket, vain = tonumber(since), state == 'a' and tonumber(times) or 0
  reply = answer_copy(name, base, place, known, nth, token)
  if reply == 'drop copy' then
    count(name, 'd', 1)
  end
end
if not again then -- again: the reply to this delivery was lost
  count(name, 'v', 1)
end
if not reply and name.seen ~= wants then
  reply = mismatch(name, wants, 1, limit, redis.call('ZCARD', QUEUE))
end
local rank = not reply and redis.call('ZRANK', base .. 'places', place)
if not (reply or rank) then
  local crowd = crowd_beyond(name, base, tonumber(max_waiters), terms, limit)
  if crowd then
    reply = reject(name, 'full', crowd, limit)
  else
    ticket = ticket > 0 and ticket or name.us
    redis.call('ZADD', base .. 'places', string.format(name.format, ticket), place)
    rank = redis.call('ZRANK', base .. 'places', place)
  end
end
if rank then
  reply = take_or_come_back(name, base, rank, limit, nth, ticket, vain, seen)
end
finish(name)
return reply
