-- acquire: grant permits of a name, reject the caller, or let the caller wait in the queue.
-- A waiter repeats the call with its token, as its heartbeat. If the token has a lease, the reply is this lease.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token lease how wants terms keep overrides max_waiters fair compact
--   token: the ID of this acquire, which the caller makes
--   lease: lease duration in ms, or inf
--   how: "try" (don't wait), "skip" (the same, but a rejection counts as skipped), "wait", "again" (a waiter's
--     heartbeat), or "shadow" (grant in any case)
--   wants: the kind ("p": plain, "w": read/write), and the limit. If the caller gives a rate, "PERMITS/MS" follows.
--   terms: permits (0: the whole name), limit, channel of the caller's event loop ("-" in sync code), label. If the
--     caller gives a share, "/LIMIT/SHARE" precedes the label.
--   keep: minutes of history in the statistics
--   The caller may leave out the last arguments, from overrides on:
--   overrides: the overrides of the policy (see apply_override); "-" (the default) for none
--   max_waiters: max number of waiters of the name (see crowded); no limit by default
--   fair: 0 to let a newcomer pass the first waiter, if that waiter came less than HEARTBEAT ago
--   compact: 0 to keep the name in the expanded state (see compact_state)
-- Returns one of these texts. Words in capitals are values.
--   "ok FENCE LEASE [USED] [REASON]": the token has a lease of LEASE ms. USED: permits in use, if there are other
--     holders. REASON: only in shadow mode; why the limit would have rejected the caller.
--   "wait NOW DELAY RANK": the caller waits. NOW: server time in ms. DELAY: ms until the next heartbeat. RANK: number
--     of waiters ahead. If the word "rate" follows, a rate or a pause opens after DELAY, so the waiter has to be punctual.
--   "no REASON WAITING MEAN_HOLD LIMIT [OPENS]": the caller is rejected (see reject). If REASON is "share", WAITING and
--     LIMIT are those of the share.
--   "more": this call could not remove all expired leases and dead waiters. The caller repeats the call immediately.
--   "large LIMIT": the caller wants more permits than LIMIT, the limit in force.
--   "kind OTHER": the name is in use as the other kind, OTHER.
--   "gone": the token's lease has ended, or the token has lost its position in the queue.
--   "dead": the token has a tombstone, so it gets no permits.
local token, lease, how, wants, terms, keep, overrides, _, _, compact = unpack(ARGV)
local base = string.sub(LEASES, 1, -7) -- the prefix of all keys of the name
local packed, us, fence, expiry, ends, seen, peak, holder, at = compact_state(base)
if packed then
  local packs = compact ~= '0' and lease ~= 'inf' and (not overrides or overrides == '-')
  if packs and holder == '' and how ~= 'again' and string.sub(terms, 1, 2) == '1 ' then -- the usual case
    return take_compact(us, keep, base, token, lease, 1, terms, fence, expiry, wants, peak, '', false)
  end
  local reply = ask_compact(us, keep, base, packs, packed, fence, expiry, ends, seen, peak, holder, at)
  if reply then return reply end
end
local name, record = open(token, keep, us, overrides)
-- the composer inserts here: count
local reply, me, rank = nil, nil, nil -- me: the token, if the caller already waits
if record then
  reply, terms = answer_known(name, token, record)
  if reply then return reply end
  me = token
elseif how == 'again' then
  return 'gone'
end
if compact == '0' or name.rate then
  begin_modes(name, wants, terms)
end
local permits, limit, channel = string.match(terms, TERMS)
permits, limit = tonumber(permits), name.override or tonumber(limit)
local waiting
name.asker = channel
reply, waiting = make_room(name, me)
if me then
  rank = not reply and redis.call('ZRANK', QUEUE, token)
  if name.shared and not (reply or rank) then
    local _, share = share_of(terms)
    rank = share and redis.call('ZRANK', PARKED, parked_as(share, string.match(record, '%d+'), token))
    rank = rank and rank + redis.call('ZCARD', QUEUE) -- parked waiters come after the whole queue
  end
  if not reply and not rank then reply = 'gone' end -- hand_off removed the waiter, because a new limit is too low
elseif permits > limit or permits > name.most or name.seen ~= wants then
  reply = mismatch(name, wants, permits, math.min(limit, name.most), waiting)
end
if not (reply or rank) then
  reply, rank = place_newcomer(name, base, permits, limit, waiting)
end
if rank then
  reply = wait(name, token, rank, channel, permits)
end
if name.puts[1] or name.dropped or me then
  finish(name)
end
return reply
