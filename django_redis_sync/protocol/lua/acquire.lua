-- acquire: take permits of a name, or a place in its queue; asked again by every waiter. A token
-- that holds an unexpired lease is answered with it, a buried one never.
-- KEYS leases queue waiters info wake stats never
-- ARGV token lease permits limit kind how max_waiters fair channel label mark keep short
--   lease: ms or inf; permits: 0 for all of them; kind: p (plain) or w (read/write);
--   how: try | wait | again (a waiter's heartbeat) | shadow (counts a refusal, and grants);
--   channel: - for none;
--   mark: that of its policy, - for none; keep: minutes of history;
--   short: 1 when a name that nobody has may be packed into the short state
-- Returns ok fence lease [reason: what shadow counted] | wait now told rank | no reason waiting mean_hold limit | more (of what is over some is left: ask again at once) | large limit | kind other | gone | dead
local token, lease, permits, limit, kind, how, max_waiters, fair, channel, label, mark, keep, short = unpack(ARGV)
local terms, wants, many = permits .. ' ' .. limit .. ' ' .. channel .. ' ' .. label, kind .. ' ' .. limit, tonumber(permits)
local packed, fence, expiry, ends, seen, peak, holder, lone = short_state()
local us, reply = nil, nil
if packed then
  local name = glance(keep)
  us, reply = name.us, ask_alone(name, packed, fence, expiry, ends, seen, peak, holder, lone, terms, wants, many)
  if reply then return reply end
end
local name, record = open(token, keep, us)
if mark ~= '-' then
  heed(name, mark)
end
if record then
  return asked_again(name, token, record)
elseif how == 'again' then
  return {'gone'}
end
local most, waiting = name.override or tonumber(limit), redis.call('ZCARD', QUEUE)
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
    reply = let_in(name, token, lease, permits, terms, wants, free, waiting == 0 and short == '1' and mark == '-')
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
