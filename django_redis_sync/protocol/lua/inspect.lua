-- inspect: what there is under a name, without changing it.
-- KEYS leases never
-- ARGV token most
--   token: empty; most: rows of holders and of waiters at the most
-- Returns now fence limit paused seen clash used holding waiting holders waiters; holders: token, end,
--   record in turn, unexpired ones by end; waiters: token, ticket, deadline, record, in waiting order
local token, most = unpack(ARGV)
local packed, us, fence, _, ends, seen, _, holder, at = short_state(string.sub(LEASES, 1, -7))
if packed and packed ~= '' then
  local name = glance(us, '0')
  return inspect_alone(name, fence, ends, seen, holder, string.sub(packed, at), tonumber(most))
end
local name = open(token, '0', us)
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
