-- inspect: what there is under a name, without changing it.
-- KEYS leases queue waiters info wake stats never
-- ARGV token most
--   token: empty; most: rows of holders and of waiters at the most
-- Returns now fence limit paused seen clash used holding waiting holders waiters; holders: token, end,
--   record in turn, unexpired ones by end; waiters: token, ticket, deadline, record, in waiting order
local token, most = unpack(ARGV)
local packed, fence, _, ends, seen, _, holder, record = short_state()
if packed and packed ~= '' then
  return inspect_alone(glance('0'), fence, ends, seen, holder, record, tonumber(most))
end
local name = open(token, '0', nil)
local used, live = name.card + name.extra, '(' .. name.at
for _, t in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', name.at)) do
  local _, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
  used = used - weight(tonumber(string.match(terms or '1', '^%d+')))
end
local holders = rows(redis.call('ZRANGEBYSCORE', LEASES, live, '+inf', 'WITHSCORES', 'LIMIT', 0, most), nil)
local waiters = rows(redis.call('ZRANGE', QUEUE, 0, most - 1, 'WITHSCORES'), WAITERS)
return {name.at, whole(name, name.fence), name.override and whole(name, name.override) or '',
  name.paused or '', name.seen or '', redis.call('HGET', INFO, '#clash') or '', whole(name, used),
  redis.call('ZCOUNT', LEASES, live, '+inf'), redis.call('ZCARD', QUEUE), holders, waiters}
