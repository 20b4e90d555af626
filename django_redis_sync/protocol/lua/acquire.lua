-- acquire: take permits of a name, or a place in its queue; asked again by every waiter. A token
-- that holds an unexpired lease is answered with it, a buried one never.
-- KEYS leases queue waiters info wake stats never
-- ARGV token lease permits limit kind how max_waiters fair channel label mark keep
--   lease: ms or inf; permits: 0 for all of them; kind: p (plain) or w (read/write);
--   how: try | wait | again (a waiter's heartbeat) | shadow (counts a refusal, and grants);
--   channel: - for none;
--   mark: that of its policy, - for none; keep: minutes of history
-- Returns ok fence lease [reason: what shadow counted] | wait now told rank | no reason waiting mean_hold limit | more (of what is over some is left: ask again at once) | large limit | kind other | gone | dead
local token, lease, permits, limit, kind, how, max_waiters, fair, channel, label, mark, keep = unpack(ARGV)
local name, record = open(token, keep)
if mark ~= '-' then
  heed(name, mark)
end
if record then
  return asked_again(name, token, record)
elseif how == 'again' then
  return {'gone'}
end

local terms, wants = permits .. ' ' .. limit .. ' ' .. channel .. ' ' .. label, kind .. ' ' .. limit
local many, most = tonumber(permits), name.override or tonumber(limit)
local waiting, reply = redis.call('ZCARD', QUEUE), nil
if waiting > 0 or name.card > 0 then
  sweep(name, nil)
end
if waiting > 0 and name.dropped then
  name.asker = channel
  hand_over(name, nil)
  waiting = redis.call('ZCARD', QUEUE)
end

if many > most or name.seen ~= wants then
  reply = mismatch(name, wants, many, most, waiting)
end
if not reply then
  local free = fits(name, many, most)
  if free and waiting > 0 then -- first come, first served; unless the newcomer would rather not
    free = fair == '0' and overtakes(name)
  end
  if free or how == 'shadow' then
    if not free then count(name, 's', 1) end
    local fence, ms = grant(name, token, many, lease, terms, nil, false)
    reply = {'ok', fence, ms, not free and (name.paused and 'paused' or 'full') or nil}
  elseif how ~= 'try' and waiting < tonumber(max_waiters) then
    reply = enqueue(name, token, lease, terms, waiting, channel)
  elseif name.more then
    reply = {'more'}
  else
    reply = refuse(name, waiting, most)
  end
end
if name.latest > name.now or name.puts[1] or name.dropped then
  finish(name)
end
return reply
