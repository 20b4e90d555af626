-- acquire: take permits of a name, or a place in its queue; asked again by every waiter. A token
-- that holds an unexpired lease is answered with it, a buried one never.
-- KEYS leases queue waiters info wake stats never
-- ARGV token lease permits limit kind how max_waiters fair channel label keep
--   lease: ms or inf; permits: 0 for all of them; kind: p (plain) or w (read/write);
--   how: try | wait | again (a waiter's heartbeat) | shadow (counts a refusal, and grants);
--   channel: - for none; keep: minutes of history
-- Returns ok fence lease [reason: what shadow counted] | wait now told rank | no reason waiting mean_hold limit | large limit | kind other | gone | dead
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
if not record then
-- @include admit
end
if not reply then
-- @include wait
end
-- @include finish
return reply
