local FIRST, CLAIM, BEAT, PATIENCE, ASLEEP, NEAR, GRACE, BURIAL, BOUND, ROUNDS, EXCLUSIVE, PAIR = 5000, 3000, 1000, 2000, 5000, 32, 5000, 120000, 100, 20, 1099511627776, 1099511627776
-- KEYS leases queue waiters info wake stats never
-- ARGV token fence how ms nth known keep
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
local how, t = ARGV[3], token
local state, nth, own, lease, permits, limit, channel, label = string.match(record or '', RECORD)
local ends = tonumber(record and call('ZSCORE', LEASES, token) or 0)
if ends <= now or own ~= ARGV[2] then
  local what, n = 'l', 1
if ARGV[#ARGV] ~= '0' and redis.pcall('HINCRBY', STATS, minute .. ':' .. what, whole(n)) == n then
  local keep = tonumber(ARGV[#ARGV])
  local last = tonumber(call('HGET', STATS, 'tidied') or minute) -- the first of its minute: tidy up
  if last < minute or call('HEXISTS', STATS, 'tidied') == 0 then
    call('HSET', STATS, 'tidied', minute)
    call('PEXPIREAT', STATS, whole(now + (keep + 60) * 60000))
    for old = math.max(last, minute - 2 * keep) - keep, minute - keep - 1 do
      for name in string.gmatch('gwrntcslp', '.') do
        local field = old .. ':' .. name
        local sum = tonumber(call('HGET', STATS, field) or 0)
        if sum > 0 then
          call('HDEL', STATS, field)
          if name == 'w' or name == 'r' then
            call('HINCRBY', STATS, 'total:' .. name .. ':ms', sum % PAIR)
            sum = math.floor(sum / PAIR)
          end
          if name ~= 'p' then call('HINCRBY', STATS, 'total:' .. name, sum) end
        end
      end
    end
  end
end
  return {'lost'}
end
local coming, newest = tonumber(ARGV[5]), tonumber(nth) or 0
if how == 'adopt' and newest > tonumber(ARGV[6]) and newest ~= coming then return {'adopted'} end
if state == 'g' then
call('ZREM', WAITERS, token)
call('DEL', KEYS[5])
  state = 'h'
end
if how ~= 'confirm' and coming >= newest then
  local moved = now + tonumber(ARGV[4])
  if ends == math.huge then recount = true end
  ends, lease, nth = moved, ARGV[4], ARGV[5]
  call('ZADD', LEASES, whole(ends), token)
  latest = math.max(latest, ends)
end
put(t, state .. nth .. ' ' .. own .. ' ' .. lease .. ' ' .. permits .. ' ' .. limit .. ' ' .. channel ..
  ' ' .. label)
if extra ~= stored then put('#extra', whole(extra)) end
if recount then -- what kept the keys for ever is gone: find what is the latest now
  expiry = 0
  for _, key in ipairs({LEASES, WAITERS}) do
    latest = math.max(latest, tonumber(call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0))
  end
  if override or paused then latest = math.huge end
end
local later = (recount or puts[1] or latest > now) and latest + GRACE > expiry
if later then
  expiry = latest + 2 * GRACE
  put('#expiry', whole(expiry))
  fresh = {LEASES, INFO}
  for _, key in ipairs({QUEUE, WAITERS}) do -- what is not ours stays as it is
    if tonumber(redis.pcall('ZCARD', key)) then fresh[#fresh + 1] = key end
  end
end
if puts[1] then call('HSET', INFO, unpack(puts)) end
for i = 1, #fresh do
  if expiry < math.huge then call('PEXPIREAT', fresh[i], whole(expiry))
  elseif later then call('PERSIST', fresh[i]) end
end
return {'ok', whole(ends - now)}
