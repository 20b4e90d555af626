-- inspect: what there is under a name, without changing it.
-- KEYS leases queue waiters info wake stats never
-- ARGV token most
--   token: empty; most: rows of holders and of waiters at the most
-- Returns now fence limit paused seen clash used holding waiting holders waiters; holders: token, end,
--   record in turn, unexpired ones by end; waiters: token, ticket, deadline, record, in waiting order
-- @include state
local function rows(list, deadlines)
  local out = {}
  for i = 1, #list, 2 do
    out[#out + 1] = list[i]
    out[#out + 1] = list[i + 1]
    if deadlines then out[#out + 1] = call('ZSCORE', WAITERS, list[i]) or '0' end
    out[#out + 1] = call('HGET', INFO, list[i]) or ''
  end
  return out
end
local most = tonumber(ARGV[2])
local used = card + extra
for _, t in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', at)) do
  local _, _, _, _, permits = string.match(call('HGET', INFO, t) or '', RECORD)
  local many = tonumber(permits or 1)
-- @include weight
  used = used - weight
end
return {at, whole(fence), override and whole(override) or '', paused or '', seen or '',
  call('HGET', INFO, '#clash') or '', whole(used),
  call('ZCOUNT', LEASES, '(' .. at, '+inf'), call('ZCARD', QUEUE),
  rows(call('ZRANGEBYSCORE', LEASES, '(' .. at, '+inf', 'WITHSCORES', 'LIMIT', 0, most)),
  rows(call('ZRANGE', QUEUE, 0, most - 1, 'WITHSCORES'), true)}
