local FIRST, CLAIM, BEAT, PATIENCE, ASLEEP, NEAR, GRACE, BURIAL, BOUND, ROUNDS, EXCLUSIVE, PAIR = 5000, 3000, 1000, 2000, 5000, 32, 5000, 120000, 100, 20, 1099511627776, 1099511627776
-- KEYS leases queue waiters info wake stats never
-- ARGV token most
local call = redis.call
local LEASES, QUEUE, WAITERS, INFO, STATS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]
local token = ARGV[1]
local WAKE = string.sub(KEYS[5], 1, #KEYS[5] - #token)
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local now = (us - us % 1000) / 1000
local meta = call('HMGET', INFO, token, '#fence', '#expiry', '#extra', '#limit', '#paused', '#seen', '#peak')
local record, override, paused, seen = meta[1], meta[5] and tonumber(meta[5]), meta[6], meta[7]
local fence, expiry = tonumber(meta[2] or 0), tonumber(meta[3] or 0)
local card = call('ZCARD', LEASES)
local stored = tonumber(meta[4] or 0)
local extra = card > 0 and stored or 0
local puts, fresh, latest, recount, dropped = {}, {}, now, false, false
local WHOLE, at = '%d', string.format('%d', now)
if #at ~= 13 then WHOLE, at = '%.0f', string.format('%.0f', now) end
local function whole(n) return n == math.huge and 'inf' or string.format(WHOLE, n) end
local function put(field, value) puts[#puts + 1] = field; puts[#puts + 1] = value end
local RECORD = '^(%a)(%d*) (%d+) (%S+) (%d+) (%d+) (%S+) (.*)$'
local minute = (now - now % 60000) / 60000
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
local weight = many == 0 and EXCLUSIVE or many
  used = used - weight
end
return {at, whole(fence), override and whole(override) or '', paused or '', seen or '',
  call('HGET', INFO, '#clash') or '', whole(used),
  call('ZCOUNT', LEASES, '(' .. at, '+inf'), call('ZCARD', QUEUE),
  rows(call('ZRANGEBYSCORE', LEASES, '(' .. at, '+inf', 'WITHSCORES', 'LIMIT', 0, most)),
  rows(call('ZRANGE', QUEUE, 0, most - 1, 'WITHSCORES'), true)}
