-- acquire: take permits of a name, or a place in its queue; asked again by every waiter. A token
-- that holds an unexpired lease is answered with it, a buried one never.
-- KEYS leases queue waiters info wake stats never
-- ARGV token lease permits limit kind how max_waiters fair channel label keep
--   lease: ms or inf; permits: 0 for all of them; kind: p (plain) or w (read/write);
--   how: try | wait | again (a waiter's heartbeat) | shadow (counts a refusal, and grants);
--   channel: - for none; keep: minutes of history
-- Returns ok fence lease [reason: what shadow counted] | wait now told rank | no reason waiting [mean_hold] | large limit | kind other | gone | dead
-- @include state
local t, me, ticket, handed, how, reply = token, token, nil, false, ARGV[6], nil
local lease, permits, limit, channel, label = ARGV[2], ARGV[3], ARGV[4], ARGV[9], ARGV[10]
local many, most, wants = tonumber(permits), override or tonumber(limit), ARGV[5] .. ' ' .. limit
local waiting = call('ZCARD', QUEUE)

if not record and how ~= 'again' then
  if card > 0 and waiting == 0 then
-- @include sweep
  end
-- @include fits
  if fit and waiting == 0 and (card == 0 or seen == wants) then -- nobody is in the way
    if seen ~= wants then put('#seen', wants) end
-- @include granted finish
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
-- @include claimed
    return {'ok', own, whole(ends - now)}
  end
end
if record or waiting > 0 then
-- @include sweep
end
if record or (waiting > 0 and dropped) then
-- @include hand
  waiting = call('ZCARD', QUEUE)
end

-- '#seen' is the kind and the limit of the last caller. Another kind on a live name is refused;
-- another limit is noted for the operator: '#clash' is when, and the one before.
if record then
elseif many > most then
  reply = {'large', whole(most)}
elseif seen and seen ~= wants and card + waiting > 0 and string.sub(seen, 1, 1) ~= ARGV[5] then
  reply = {'kind', string.sub(seen, 1, 1)}
else
  if seen and seen ~= wants and card + waiting > 0 then put('#clash', at .. ' ' .. seen) end
  if seen ~= wants then put('#seen', wants) end
  local head = ARGV[8] == '0' and call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  local barge = head and math.abs(now - head / 1000) < BEAT
-- @include fits
  local free = fit and (waiting == 0 or barge)
  if free or how == 'shadow' then
    if not free then
      local what, n = 's', 1
-- @include counted
    end
-- @include granted
    reply = {'ok', given, whole(ms), not free and (paused and 'paused' or 'full') or nil}
  elseif how == 'try' or waiting >= tonumber(ARGV[7]) then
    if card + waiting == 0 then puts = {} end
    if paused or card + waiting > 0 then
      local what, n = 'n', 1
-- @include counted
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
    put(token, 'w 0 ' .. lease .. ' ' .. permits .. ' ' .. limit .. ' ' .. channel .. ' ' .. label)
  end
end

if not reply then
  local rank = waiting -- one that just came is the last
  if record then rank = call('ZRANK', QUEUE, token) end
  if rank then
    -- Only as many waiters as there are holders watch a lease end, each its own: no herd at any.
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
-- @include finish
return reply
