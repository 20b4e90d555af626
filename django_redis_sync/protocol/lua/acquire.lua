-- acquire: take permits of a name, or a place in its queue; asked again by every waiter. A token
-- that holds an unexpired lease is answered with it, a buried one never.
-- KEYS leases never
-- ARGV token lease how wants terms keep mark max_waiters fair short
--   lease: ms or inf; how: try | wait | again (a waiter's heartbeat) | shadow (counts a refusal, and
--   grants); wants: its kind, p (plain) or w (read/write), and the limit; terms: permits (0 for all of
--   them), limit, channel (- for none) and label; keep: minutes of history. These may be left out:
--   mark: that of its policy (-); max_waiters (any); fair (1); short: whether a name that nobody has
--   may be packed into the short state (1)
-- Returns ok fence lease [reason: what shadow counted] | wait now told rank | no reason waiting mean_hold limit | more (of what is over some is left: ask again at once) | large limit | kind other | gone | dead
local token, lease, how, wants, terms, keep, mark, max_waiters, fair, short = unpack(ARGV)
local base = string.sub(LEASES, 1, -7) -- all keys of the name begin with it
local packed, us, fence, expiry, ends, seen, peak, holder, at = short_state(base)
if packed then
  local packs = short ~= '0' and lease ~= 'inf' and (not mark or mark == '-')
  if packs and holder == '' and how ~= 'again' and string.sub(terms, 1, 2) == '1 ' then -- mostly
    return take_alone(us, keep, base, token, lease, 1, terms, fence, expiry, wants, peak, '', false)
  end
  local reply = ask_alone(us, keep, base, packs, packed, fence, expiry, ends, seen, peak, holder, at)
  if reply then return reply end
end
local name, record = open(token, keep, us)
if mark and mark ~= '-' then heed(name, mark) end
if record then
  return asked_again(name, token, record)
elseif how == 'again' then
  return 'gone'
end
local permits, limit, channel = string.match(terms, TERMS)
local reply, many, most, waiting = nil, tonumber(permits), name.override or tonumber(limit), redis.call('ZCARD', QUEUE)
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
    reply = let_in(name, base, token, lease, many, terms, wants, free, waiting == 0 and short ~= '0' and (not mark or mark == '-'))
  elseif how ~= 'try' and waiting < tonumber(max_waiters or math.huge) then
    reply = enqueue(name, token, lease, terms, waiting, channel)
  elseif name.more then
    reply = 'more'
  else
    reply = refuse(name, waiting, most)
  end
end
if name.puts[1] or name.dropped then
  finish(name)
end
return reply
