-- acquire: take permits of a name, or a place in its queue; asked again by every waiter. A token
-- that holds an unexpired lease is answered with it, a buried one never.
-- KEYS leases queue waiters info wake stats never
-- ARGV token lease permits limit kind how max_waiters fair channel label keep
--   lease: ms or inf; permits: 0 for all of them; kind: p (plain) or w (read/write);
--   how: try | wait | again (a waiter's heartbeat) | shadow (counts a refusal, and grants);
--   channel: - for none; keep: minutes of history
-- Returns ok fence lease [reason: what shadow counted] | wait now told rank | no reason waiting [mean_hold] | large limit | kind other | gone | dead
-- @include state stats finish grant
local how, mine = ARGV[6], {state = 'n', fence = '0', lease = tonumber(ARGV[2]),
  permits = tonumber(ARGV[3]), limit = tonumber(ARGV[4]), channel = ARGV[9], label = ARGV[10]}
local wants, waiting, got = ARGV[5] .. ' ' .. ARGV[4], call('ZCARD', QUEUE), nil
if not record and how ~= 'again' and card + waiting == 0 and fits(mine) then -- nobody is there
  if seen ~= wants then put('#seen', wants) end
  return finish(give(token, mine, false))
end

-- @include record sweep
local was = parse(record)
if record and was.state ~= 'w' then
  local ends = tonumber(call('ZSCORE', LEASES, token) or 0)
  if was.state == 'x' then return {'dead'} end
  if ends <= now then return {'gone'} end
  return claim(was, ends)
end
if how == 'again' and not record then return {'gone'} end
if card > 0 or waiting > 0 then sweep(token) end
if not record and waiting == 0 and seen == wants and fits(mine) then -- nobody waits
  return finish(give(token, mine, false))
end

if record or (waiting > 0 and dropped) then
-- @include hand
  got = hand(token)
  waiting = call('ZCARD', QUEUE)
end
-- @include queue refuse
if not record then
  if mine.permits > limit_of(mine) then return finish({'large', whole(limit_of(mine))}) end
  local other = disagrees(wants, card + waiting > 0)
  if other then return finish({'kind', other}) end
  local head = ARGV[8] == '0' and call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
  local barge = head and math.abs(now - head / 1000) < BEAT
  if (waiting == 0 or barge) and fits(mine) then
    got = give(token, mine, false)
  elseif how == 'shadow' then
    count('s', 1)
    got = give(token, mine, false)
    got[4] = paused and 'paused' or 'full'
  elseif how == 'try' or waiting >= tonumber(ARGV[7]) then
    if card + waiting == 0 then puts = {} end
    if paused or card + waiting > 0 then count('n', 1) end
    return finish({'no', paused and 'paused' or 'full', waiting, mean_hold()})
  else
    enqueue(mine)
  end
end
return finish(got or wait())
