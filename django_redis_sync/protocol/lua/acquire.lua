-- acquire: take permits of a name, or a place in its queue; repeated by each waiter. A token that
-- holds an unexpired lease is answered with it; a token with a tombstone is never granted.
-- KEYS leases never
-- ARGV token lease how wants terms keep mark max_waiters fair compact
--   lease: ms or inf; how: try | wait | again (a waiter's heartbeat) | shadow (counts a rejection,
--   and grants); wants: its kind, p (plain) or w (read/write), and the limit; terms: permits (0 for all of
--   them), limit, channel (- for none), maybe a share as /LIMIT/SHARE, and label; keep: minutes of history. These may be left out:
--   mark: that of its policy (-); max_waiters (any); fair (1); compact: 0 keeps the name expanded (1)
-- Returns ok fence lease [used: permits in use, if others hold some; reason: what shadow counted] | wait now told rank | no reason waiting mean_hold limit (of its share, if the reason is share) | more (expired leases are left: ask again at once) | large limit | kind other | gone | dead
local token, lease, how, wants, terms, keep, mark, _, _, compact = unpack(ARGV)
local base = string.sub(LEASES, 1, -7) -- all keys of the name begin with it
local packed, us, fence, expiry, ends, seen, peak, holder, at = compact_state(base)
if packed then
  local packs = compact ~= '0' and lease ~= 'inf' and (not mark or mark == '-')
  if packs and holder == '' and how ~= 'again' and string.sub(terms, 1, 2) == '1 ' then -- mostly
    return take_compact(us, keep, base, token, lease, 1, terms, fence, expiry, wants, peak, '', false)
  end
  local reply = ask_compact(us, keep, base, packs, packed, fence, expiry, ends, seen, peak, holder, at)
  if reply then return reply end
end
local name, record = open(token, keep, us)
if mark and mark ~= '-' then
  apply_override(name, mark)
end
-- make count
local reply, me, rank = nil, nil, nil -- me: the token, if it is in the queue
if record then
  reply, terms = answer_known(name, token, record)
  if reply then return reply end
  me = token
elseif how == 'again' then
  return 'gone'
end
if compact == '0' and not name.shared then
  begin_shares(name, terms)
end
local permits, limit, channel = string.match(terms, TERMS)
local many, most = tonumber(permits), name.override or tonumber(limit)
local waiting
name.asker = channel
reply, waiting = make_room(name, me)
if me then
  rank = not reply and redis.call('ZRANK', QUEUE, token)
  if name.shared and not (reply or rank) then
    rank = parked_rank(record)
  end
  if not reply and not rank then reply = 'gone' end -- its limit became too small for it
elseif many > most or name.seen ~= wants then
  reply = mismatch(name, wants, many, most, waiting)
end
if not (reply or rank) then
  reply, rank = place_newcomer(name, base, many, most, waiting)
end
if rank then
  reply = wait(name, token, rank, channel)
end
if name.puts[1] or name.dropped or me then
  finish(name)
end
return reply
