-- inspect: return the state of a name, without changing it.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token max_rows overrides
--   token: always empty
--   max_rows: max number of holders in the reply, and max number of waiters
--   overrides: as in acquire, but only with the rate of the policy; may be left out
-- Returns now fence limit paused seen clash used holding waiting holders waiters held
--   now: server time in ms
--   fence: fencing token of the last grant
--   limit, paused: the operators' overrides of the name, or ''
--   seen, clash: see mismatch
--   used: number of permits in use
--   holding: number of holders
--   waiting: number of waiters, including the jobs that workers hold in their memory
--   holders: a flat list with the token, end, and record of each unexpired lease. The earliest end comes first.
--   waiters: a flat list with the token, ticket, deadline, and record of each waiter. Waiters in the queue come first,
--     then parked waiters by share.
--   held: a flat list with the ID of each worker that holds jobs, and their number
--   If the name has shares, the three values of heaviest_shares follow. If it has a rate or a cool-down, these values (or
--   three empty texts) and four more follow: the rate as in the field '#rate' (see begin_rate), the permits granted within
--   its period, the ms until a newcomer could get a permit, and the field '#cool' (see cool_ends).
local token, max_rows, overrides = unpack(ARGV)
local packed, us, fence, _, ends, seen, _, holder, at = compact_state(string.sub(LEASES, 1, -7))
if packed and packed ~= '' then
  local name, record = compact_fields(us, '0', false), string.sub(packed, at)
  local held, workers = held_jobs(name.now)
  local live = ends > name.now
  local used = live and weight(tonumber(string.match(record, '^%S+ %S+ %S+ (%d+)'))) or 0
  local row = live and tonumber(max_rows) > 0 and {holder, whole(name, ends), record} or {}
  return {whole(name, name.now), whole(name, fence), '', '', seen, '', whole(name, used), live and 1 or 0, held, row, {}, workers}
end
local name = open(token, '0', us, overrides)
local used, live = name.card + name.extra, '(' .. name.at
local ended = {} -- maps a share to the permits of its expired leases
for _, t in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', name.at)) do
  local _, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
  local permits, _, share = weight(tonumber(string.match(terms or '1', '^%d+'))), share_of(terms or '')
  used = used - permits
  if share then ended[share] = (ended[share] or 0) + permits end
end
local holders = rows(redis.call('ZRANGEBYSCORE', LEASES, live, '+inf', 'WITHSCORES', 'LIMIT', 0, max_rows), nil)
local queue = redis.call('ZRANGE', QUEUE, 0, max_rows - 1, 'WITHSCORES')
if name.shared then
  add_parked(queue, tonumber(max_rows))
end
local waiters = rows(queue, WAITERS)
local held, workers = held_jobs(name.now)
local meta = redis.call('HMGET', INFO, '#clash', '#paused', '#cool') -- name.paused may be the cool-down
local reply = {name.at, whole(name, name.fence), name.override and whole(name, name.override) or '',
  meta[2] and pause_ends(meta[2]) > name.now and meta[2] or '', name.seen or '', meta[1] or '', whole(name, used),
  redis.call('ZCOUNT', LEASES, live, '+inf'), waiting_of(name) + held, holders, waiters, workers}
if name.shared then
  reply[13], reply[14], reply[15] = heaviest_shares(name, TOP_SHARES, ended)
end
local cools = meta[3] and cool_ends(name, meta[3])
if name.rate or cools then
  for place = #reply + 1, 15 do
    reply[place] = ''
  end
  reply[16], reply[17], reply[18], reply[19] = name.rate or '', '', '', cools and meta[3] or ''
end
if name.rate then
  local log = rate_log(name)
  reply[17], reply[18] = whole(name, log.total), whole(name, rate_opens(name, waiting_of(name) + 1))
end
return reply
