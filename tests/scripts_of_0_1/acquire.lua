local FIRST, CLAIM, BEAT, PATIENCE, ASLEEP, NEAR, GRACE, BURIAL, BOUND, ROUNDS, EXCLUSIVE, PAIR = 5000, 3000, 1000, 2000, 5000, 32, 5000, 120000, 100, 20, 1099511627776, 1099511627776
-- KEYS leases queue waiters info wake stats never
-- ARGV token lease permits limit kind how max_waiters fair channel label keep
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
local t, me, ticket, handed, how, reply = token, token, nil, false, ARGV[6], nil
local lease, permits, limit, channel, label = ARGV[2], ARGV[3], ARGV[4], ARGV[9], ARGV[10]
local many, most, wants = tonumber(permits), override or tonumber(limit), ARGV[5] .. ' ' .. limit
local waiting = call('ZCARD', QUEUE)
if not record and how ~= 'again' then
  if card > 0 and waiting == 0 then
if us < fence then -- the clock went back: no deadline may lie further ahead than it was meant to
  for _, key in ipairs({LEASES, WAITERS}) do
    for _, t in ipairs(call('ZREVRANGE', key, 0, BOUND - 1)) do
      local state, _, _, lease = string.match(call('HGET', INFO, t) or '', RECORD)
      local most = key == LEASES and (tonumber(lease) or FIRST) or state == 'x' and BURIAL or ASLEEP
      if tonumber(call('ZSCORE', key, t)) > now + most then call('ZADD', key, now + most, t) end
    end
  end
end
for _ = 1, ROUNDS do
  local over = call('ZRANGEBYSCORE', LEASES, '-inf', at, 'LIMIT', '0', BOUND)
  for i = 1, #over do
    local t = over[i]
    local state, _, _, _, permits = string.match(call('HGET', INFO, t) or '', RECORD)
    local ends = call('ZSCORE', LEASES, t)
dropped = true
if ends then
  call('ZREM', LEASES, t)
  card = card - 1
  local many = tonumber(permits or 1)
local weight = many == 0 and EXCLUSIVE or many
  extra = card > 0 and extra - weight + 1 or 0
  if ends == 'inf' then recount = true end
end
if state ~= 'h' then
  if state ~= 'g' then call('ZREM', QUEUE, t) end -- who was granted has left it
  call('ZREM', WAITERS, t)
  call('DEL', WAKE .. t)
end
call('HDEL', INFO, t)
    if state ~= 'k' then -- who kept its permits had given its lease back
      local what, n = 'c', 1
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
    end
  end
  if #over < BOUND then break end
end
local late = call('ZRANGEBYSCORE', WAITERS, '-inf', at, 'LIMIT', '0', BOUND)
for i = 1, #late do
  local t, ends = late[i], call('ZSCORE', LEASES, late[i])
  if t == me then
  elseif ends and call('EXISTS', WAKE .. t) == 0 then -- it woke
    call('ZREM', WAITERS, t)
  else
    local state, _, _, _, permits = string.match(call('HGET', INFO, t) or '', RECORD)
dropped = true
if ends then
  call('ZREM', LEASES, t)
  card = card - 1
  local many = tonumber(permits or 1)
local weight = many == 0 and EXCLUSIVE or many
  extra = card > 0 and extra - weight + 1 or 0
  if ends == 'inf' then recount = true end
end
if state ~= 'h' then
  if state ~= 'g' then call('ZREM', QUEUE, t) end -- who was granted has left it
  call('ZREM', WAITERS, t)
  call('DEL', WAKE .. t)
end
call('HDEL', INFO, t)
    if ends and state ~= 'k' then
      local what, n = 'c', 1
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
    end
  end
end
  end
local fit = not paused and (many == 0 and card == 0 or many > 0 and card + extra + many <= most)
  if fit and waiting == 0 and (card == 0 or seen == wants) then -- nobody is in the way
    if seen ~= wants then put('#seen', wants) end
fence = math.max(fence + 1, us)
local given, ms = whole(fence), tonumber(lease)
if handed or ms == math.huge then ms = math.min(ms, FIRST) end
if card == 0 then fresh[#fresh + 1] = LEASES end
call('ZADD', LEASES, whole(now + ms), t)
latest = math.max(latest, now + ms)
local weight = many == 0 and EXCLUSIVE or many
card, extra = card + 1, extra + weight - 1
do
  local state, nth, own = handed and 'g' or 'h', '', given
put(t, state .. nth .. ' ' .. own .. ' ' .. lease .. ' ' .. permits .. ' ' .. limit .. ' ' .. channel ..
  ' ' .. label)
end
put('#fence', given)
if ticket then call('ZREM', QUEUE, t) end
do
  local what, n = 'g', 1
  if ticket then what, n = 'w', PAIR + math.max(0, math.floor((us - ticket) / 1000)) end
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
end
if ARGV[#ARGV] ~= '0' then -- the highest use of a minute; '#peak' remembers it, so that most need not look
  local used, this = many == 0 and 1 or card + extra, minute .. ':'
  local old = meta[8] or ''
  if old ~= this .. used and used > tonumber(string.match(old, '^' .. this .. '(%d+)$') or 0) then
    local peak = math.max(used, tonumber(call('HGET', STATS, this .. 'p') or 0))
    call('HSET', STATS, this .. 'p', peak)
    meta[8] = this .. peak
    put('#peak', meta[8])
  end
end
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
    return {'ok', given, whole(ms)}
  end
end
if how == 'again' and not record then return {'gone'} end
if record then
  local state, _, own = string.match(record, RECORD)
  if state ~= 'w' then
    local ends = tonumber(call('ZSCORE', LEASES, token) or 0)
    if state == 'x' then return {'dead'} end
    if ends <= now then return {'gone'} end
call('ZREM', WAITERS, token)
call('DEL', KEYS[5])
    return {'ok', own, whole(ends - now)}
  end
end
if record or waiting > 0 then
if us < fence then -- the clock went back: no deadline may lie further ahead than it was meant to
  for _, key in ipairs({LEASES, WAITERS}) do
    for _, t in ipairs(call('ZREVRANGE', key, 0, BOUND - 1)) do
      local state, _, _, lease = string.match(call('HGET', INFO, t) or '', RECORD)
      local most = key == LEASES and (tonumber(lease) or FIRST) or state == 'x' and BURIAL or ASLEEP
      if tonumber(call('ZSCORE', key, t)) > now + most then call('ZADD', key, now + most, t) end
    end
  end
end
for _ = 1, ROUNDS do
  local over = call('ZRANGEBYSCORE', LEASES, '-inf', at, 'LIMIT', '0', BOUND)
  for i = 1, #over do
    local t = over[i]
    local state, _, _, _, permits = string.match(call('HGET', INFO, t) or '', RECORD)
    local ends = call('ZSCORE', LEASES, t)
dropped = true
if ends then
  call('ZREM', LEASES, t)
  card = card - 1
  local many = tonumber(permits or 1)
local weight = many == 0 and EXCLUSIVE or many
  extra = card > 0 and extra - weight + 1 or 0
  if ends == 'inf' then recount = true end
end
if state ~= 'h' then
  if state ~= 'g' then call('ZREM', QUEUE, t) end -- who was granted has left it
  call('ZREM', WAITERS, t)
  call('DEL', WAKE .. t)
end
call('HDEL', INFO, t)
    if state ~= 'k' then -- who kept its permits had given its lease back
      local what, n = 'c', 1
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
    end
  end
  if #over < BOUND then break end
end
local late = call('ZRANGEBYSCORE', WAITERS, '-inf', at, 'LIMIT', '0', BOUND)
for i = 1, #late do
  local t, ends = late[i], call('ZSCORE', LEASES, late[i])
  if t == me then
  elseif ends and call('EXISTS', WAKE .. t) == 0 then -- it woke
    call('ZREM', WAITERS, t)
  else
    local state, _, _, _, permits = string.match(call('HGET', INFO, t) or '', RECORD)
dropped = true
if ends then
  call('ZREM', LEASES, t)
  card = card - 1
  local many = tonumber(permits or 1)
local weight = many == 0 and EXCLUSIVE or many
  extra = card > 0 and extra - weight + 1 or 0
  if ends == 'inf' then recount = true end
end
if state ~= 'h' then
  if state ~= 'g' then call('ZREM', QUEUE, t) end -- who was granted has left it
  call('ZREM', WAITERS, t)
  call('DEL', WAKE .. t)
end
call('HDEL', INFO, t)
    if ends and state ~= 'k' then
      local what, n = 'c', 1
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
    end
  end
end
end
if record or (waiting > 0 and dropped) then
for _ = 1, BOUND do
  local head = call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
  local t, ticket = head[1], head[2]
  if not t then break end
  local state, _, _, lease, permits, limit, channel, label =
    string.match(call('HGET', INFO, t) or '', RECORD)
  local many, most = tonumber(permits), override or tonumber(limit)
  local deadline = tonumber(call('ZSCORE', WAITERS, t) or 0)
  if state ~= 'w' or (deadline <= now and t ~= me) or many > most then
    local ends = call('ZSCORE', LEASES, t)
dropped = true
if ends then
  call('ZREM', LEASES, t)
  card = card - 1
  local many = tonumber(permits or 1)
local weight = many == 0 and EXCLUSIVE or many
  extra = card > 0 and extra - weight + 1 or 0
  if ends == 'inf' then recount = true end
end
if state ~= 'h' then
  if state ~= 'g' then call('ZREM', QUEUE, t) end -- who was granted has left it
  call('ZREM', WAITERS, t)
  call('DEL', WAKE .. t)
end
call('HDEL', INFO, t)
  else
local fit = not paused and (many == 0 and card == 0 or many > 0 and card + extra + many <= most)
    if not fit then break end
    local handed = t ~= me
fence = math.max(fence + 1, us)
local given, ms = whole(fence), tonumber(lease)
if handed or ms == math.huge then ms = math.min(ms, FIRST) end
if card == 0 then fresh[#fresh + 1] = LEASES end
call('ZADD', LEASES, whole(now + ms), t)
latest = math.max(latest, now + ms)
local weight = many == 0 and EXCLUSIVE or many
card, extra = card + 1, extra + weight - 1
do
  local state, nth, own = handed and 'g' or 'h', '', given
put(t, state .. nth .. ' ' .. own .. ' ' .. lease .. ' ' .. permits .. ' ' .. limit .. ' ' .. channel ..
  ' ' .. label)
end
put('#fence', given)
if ticket then call('ZREM', QUEUE, t) end
do
  local what, n = 'g', 1
  if ticket then what, n = 'w', PAIR + math.max(0, math.floor((us - ticket) / 1000)) end
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
end
if ARGV[#ARGV] ~= '0' then -- the highest use of a minute; '#peak' remembers it, so that most need not look
  local used, this = many == 0 and 1 or card + extra, minute .. ':'
  local old = meta[8] or ''
  if old ~= this .. used and used > tonumber(string.match(old, '^' .. this .. '(%d+)$') or 0) then
    local peak = math.max(used, tonumber(call('HGET', STATS, this .. 'p') or 0))
    call('HSET', STATS, this .. 'p', peak)
    meta[8] = this .. peak
    put('#peak', meta[8])
  end
end
    if handed then
      local element = given .. ' ' .. at .. ' ' .. whole(ms)
      call('ZADD', WAITERS, whole(now + math.min(CLAIM, ms)), t)
      redis.pcall('RPUSH', WAKE .. t, element)
      redis.pcall('PEXPIREAT', WAKE .. t, whole(now + ms + GRACE))
      if channel ~= '-' then redis.pcall('PUBLISH', channel, t .. ' ' .. element) end
    else
      call('ZREM', WAITERS, t)
      reply = {'ok', given, whole(ms)}
    end
  end
end
  waiting = call('ZCARD', QUEUE)
end
if not record then
local clash = seen and seen ~= wants and card + waiting > 0
if many > most then
  reply = {'large', whole(most)}
elseif clash and string.sub(seen, 1, 1) ~= ARGV[5] then
  reply = {'kind', string.sub(seen, 1, 1)}
else
  if clash then put('#clash', at .. ' ' .. seen) end
  if seen ~= wants then put('#seen', wants) end
  local head = ARGV[8] == '0' and call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  local barge = head and math.abs(now - head / 1000) < BEAT
local fit = not paused and (many == 0 and card == 0 or many > 0 and card + extra + many <= most)
  local free = fit and (waiting == 0 or barge)
  if free or how == 'shadow' then
    if not free then
      local what, n = 's', 1
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
    end
fence = math.max(fence + 1, us)
local given, ms = whole(fence), tonumber(lease)
if handed or ms == math.huge then ms = math.min(ms, FIRST) end
if card == 0 then fresh[#fresh + 1] = LEASES end
call('ZADD', LEASES, whole(now + ms), t)
latest = math.max(latest, now + ms)
local weight = many == 0 and EXCLUSIVE or many
card, extra = card + 1, extra + weight - 1
do
  local state, nth, own = handed and 'g' or 'h', '', given
put(t, state .. nth .. ' ' .. own .. ' ' .. lease .. ' ' .. permits .. ' ' .. limit .. ' ' .. channel ..
  ' ' .. label)
end
put('#fence', given)
if ticket then call('ZREM', QUEUE, t) end
do
  local what, n = 'g', 1
  if ticket then what, n = 'w', PAIR + math.max(0, math.floor((us - ticket) / 1000)) end
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
end
if ARGV[#ARGV] ~= '0' then -- the highest use of a minute; '#peak' remembers it, so that most need not look
  local used, this = many == 0 and 1 or card + extra, minute .. ':'
  local old = meta[8] or ''
  if old ~= this .. used and used > tonumber(string.match(old, '^' .. this .. '(%d+)$') or 0) then
    local peak = math.max(used, tonumber(call('HGET', STATS, this .. 'p') or 0))
    call('HSET', STATS, this .. 'p', peak)
    meta[8] = this .. peak
    put('#peak', meta[8])
  end
end
    reply = {'ok', given, whole(ms), not free and (paused and 'paused' or 'full') or nil}
  elseif how == 'try' or waiting >= tonumber(ARGV[7]) then
    if card + waiting == 0 then puts = {} end
    if paused or card + waiting > 0 then
      local what, n = 'n', 1
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
    end
    local n, held = 0, 0 -- how often, and how many ms, permits were held in this minute and the last
    for old = minute - 1, minute do
      local sum = call('HGET', STATS, old .. ':r') or 0
      n, held = n + math.floor(sum / PAIR), held + sum % PAIR
    end
    reply = {'no', paused and 'paused' or 'full', waiting, n > 0 and whole(held / n) or nil}
  else
    local last = waiting > 0 and call('ZREVRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
    call('ZADD', QUEUE, whole(math.max(us, (last or 0) + 1)), token)
    if waiting == 0 then fresh[#fresh + 1] = QUEUE end
    local state, nth, own = 'w', '', '0'
put(t, state .. nth .. ' ' .. own .. ' ' .. lease .. ' ' .. permits .. ' ' .. limit .. ' ' .. channel ..
  ' ' .. label)
  end
end
end
if not reply then
local rank = waiting
if record then rank = call('ZRANK', QUEUE, token) end
if rank then
  local told = math.min(BEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
  local ends = rank < card and call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
  if ends then told = math.max(1, math.min(told, tonumber(ends) - now + 1)) end
  if call('ZADD', WAITERS, whole(now + told + PATIENCE), token) == 1 then fresh[#fresh + 1] = WAITERS end
  latest = math.max(latest, now + told + PATIENCE)
  reply = {'wait', at, told, rank}
else
  reply = {'gone'} -- its limit became too small for it
end
end
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
return reply
