-- inspect: return the state of a name, without changes.
-- KEYS leases never
-- ARGV token max_rows
--   token: empty; max_rows: the max number of rows of holders, and that of waiters
-- Returns now fence limit paused seen clash used holding waiting holders waiters
--   limit, paused: the overrides of the name. seen, clash: see mismatch. used: number of permits in use.
--   holding, waiting: number of holders, number of waiters
--   holders: for each unexpired lease, its token, end, and record. The lease that ends first comes first.
--   waiters: for each waiter, its token, ticket, deadline, and record. The waiters in the queue come first, then parked
--     waiters by share, then jobs that are away. The deadline of a job is the time when it is due.
--   If the name has shares, three values follow, see heaviest_shares.
local token, max_rows = unpack(ARGV)
local packed, us, fence, _, ends, seen, _, holder, at = compact_state(string.sub(LEASES, 1, -7))
if packed and packed ~= '' then
  local name, record = compact_fields(us, '0', false), string.sub(packed, at)
  local live = ends > name.now
  local used = live and weight(tonumber(string.match(record, '^%S+ %S+ %S+ (%d+)'))) or 0
  local row = live and tonumber(max_rows) > 0 and {holder, whole(name, ends), record} or {}
  return {whole(name, name.now), whole(name, fence), '', '', seen, '', whole(name, used), live and 1 or 0, 0, row, {}}
end
local name = open(token, '0', us, '-')
local used, live = name.card + name.extra, '(' .. name.at
local ended = {} -- by share, the permits of expired leases
for _, t in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', name.at)) do
  local _, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
  local permits, _, share = weight(tonumber(string.match(terms or '1', '^%d+'))), share_of(terms or '')
  used = used - permits
  if share then ended[share] = (ended[share] or 0) + permits end
end
local holders = rows(redis.call('ZRANGEBYSCORE', LEASES, live, '+inf', 'WITHSCORES', 'LIMIT', 0, max_rows), nil)
local queue, waiting = redis.call('ZRANGE', QUEUE, 0, max_rows - 1, 'WITHSCORES'), waiting_of(name)
if name.shared then
  add_parked(queue, tonumber(max_rows))
end
local waiters = rows(queue, WAITERS)
if name.places then
  waiting = waiting + add_places(name, waiters, max_rows - #waiters / 4)
end
local reply = {name.at, whole(name, name.fence), name.override and whole(name, name.override) or '',
  name.paused or '', name.seen or '', redis.call('HGET', INFO, '#clash') or '', whole(name, used),
  redis.call('ZCOUNT', LEASES, live, '+inf'), waiting, holders, waiters}
if name.shared then
  reply[12], reply[13], reply[14] = heaviest_shares(name, TOP_SHARES, ended)
end
return reply
