-- acquire: take permits of a name, or a place in its queue; asked again by every waiter.
-- KEYS leases queue waiters info wake
-- ARGV token lease permits limit kind how max_waiters fair channel label
--   lease: ms or inf; permits: 0 for all of them; kind: p (plain) or w (read/write);
--   how: try | wait | again (a waiter's heartbeat); channel: - for none
-- Returns ok fence lease | wait now told rank | no reason waiting | large limit | kind other | gone | dead
-- Idempotent: a token that holds an unexpired lease is answered with it, a buried one never.
-- @include state finish sweep hand
local how, kind = ARGV[6], ARGV[5]
local mine = {state = 'w', fence = '0', lease = tonumber(ARGV[2]), permits = tonumber(ARGV[3]),
  limit = tonumber(ARGV[4]), channel = ARGV[9], label = ARGV[10]}
local queued = parse(record).state == 'w'
if record and not queued then
  local r, ends = parse(record), tonumber(call('ZSCORE', LEASES, token) or 0)
  if r.state == 'x' or r.state == 'k' then return {'dead'} end
  if ends <= now then return {'gone'} end
  call('ZREM', WAITERS, token)
  call('DEL', KEYS[5])
  return {'ok', r.fence, whole(ends - now)}
end
if how == 'again' and not queued then return {'gone'} end

local waiting, lease = call('ZCARD', QUEUE), nil
if card > 0 or waiting > 0 then sweep(token) end
if queued then
  lease = hand(token)
else
  if mine.permits > limit_of(mine) then return finish({'large', whole(limit_of(mine))}) end
  if waiting > 0 then hand(); waiting = call('ZCARD', QUEUE) end
  local wants = kind .. ' ' .. ARGV[4]
  if seen ~= wants then
    if seen and card + waiting > 0 then
      if string.sub(seen, 1, 1) ~= kind then return finish({'kind', string.sub(seen, 1, 1)}) end
      put('#clash', whole(now) .. ' ' .. seen)
    end
    put('#seen', wants)
  end
  local head = ARGV[8] == '0' and call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
  local barge = head and now - head / 1000 < BEAT
  if (waiting == 0 or barge) and fits(mine) then
    lease = give(token, mine, false)
  elseif how == 'try' or waiting >= tonumber(ARGV[7]) then
    if card + waiting == 0 then puts = {} end
    return finish({'no', paused and 'paused' or 'full', waiting})
  else
    local last = call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
    place(QUEUE, math.max(us, (last or 0) + 1), token)
    put(token, format(mine))
  end
end
if lease then return finish({'ok', whole(fence), whole(lease)}) end

-- Only as many waiters as there are holders watch a lease end, each its own: no herd at any of them.
local rank = call('ZRANK', QUEUE, token)
local told = math.min(BEAT + math.max(0, rank - NEAR) * 10, ASLEEP - PATIENCE)
local ends = rank < card and call('ZRANGE', LEASES, rank, rank, 'WITHSCORES')[2]
if ends then told = math.max(1, math.min(told, tonumber(ends) - now + 1)) end
place(WAITERS, now + told + PATIENCE, token)
return finish({'wait', whole(now), told, rank})
