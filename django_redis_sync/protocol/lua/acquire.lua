-- acquire: grant permits of a name, or add the caller to the queue. A waiter repeats the call as its heartbeat.
-- If the token already holds a lease, the reply is that lease again. A token with a tombstone never gets permits.
-- KEYS leases never
-- ARGV token lease how wants terms keep mark max_waiters fair compact
--   lease: ms, or inf
--   how: try, wait, again (the heartbeat of a waiter), or shadow (grants in any case, and counts what it would reject)
--   wants: the kind (p: plain; w: read/write), followed by the limit
--   terms: permits (0: the whole name), limit, channel ("-" in sync code), label. If the caller gives a share,
--     /LIMIT/SHARE precedes the label.
--   keep: minutes of history
--   The other arguments may be left out:
--   mark: the overrides of the policy, see apply_override; "-" (the default) for none
--   max_waiters: the max number of waiters of the name; by default, there is no limit
--   fair: 0 lets a newcomer pass a first waiter that needs more permits than are free
--   compact: 0 keeps the name expanded
-- Returns one of these texts. Words in capitals are values.
--   ok FENCE LEASE [USED] [REASON]: a lease of LEASE ms. USED: permits in use, if there are other holders. REASON: why
--     shadow mode would have rejected the caller.
--   wait NOW DELAY RANK: the caller waits. NOW: server time in ms. DELAY: ms until the next heartbeat. RANK: number of
--     waiters ahead.
--   no REASON WAITING MEAN_HOLD LIMIT: a rejection, see reject. If REASON is "share", WAITING and LIMIT are those of
--     the share.
--   more: this call has removed only some of the expired leases. The caller repeats the call immediately.
--   large LIMIT: the caller wants more permits than the limit in force.
--   kind OTHER: the name is in use as the kind OTHER, which is not the caller's kind.
--   gone: the lease or the place of the token has ended.
--   dead: the token has a tombstone.
local token, lease, how, wants, terms, keep, mark, _, _, compact = unpack(ARGV)
local base = string.sub(LEASES, 1, -7) -- the prefix of all keys of the name
local packed, us, fence, expiry, ends, seen, peak, holder, at = compact_state(base)
if packed then
  local packs = compact ~= '0' and lease ~= 'inf' and (not mark or mark == '-')
  if packs and holder == '' and how ~= 'again' and string.sub(terms, 1, 2) == '1 ' then -- the usual case
    return take_compact(us, keep, base, token, lease, 1, terms, fence, expiry, wants, peak, '', false)
  end
  local reply = ask_compact(us, keep, base, packs, packed, fence, expiry, ends, seen, peak, holder, at)
  if reply then return reply end
end
local name, record = open(token, keep, us, mark)
-- insert here the functions: count
local reply, me, rank = nil, nil, nil -- me: the token, if it belongs to a waiter
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
permits, limit = tonumber(permits), name.override or tonumber(limit)
local waiting
name.asker = channel
reply, waiting = make_room(name, me)
if me then
  rank = not reply and redis.call('ZRANK', QUEUE, token)
  if name.shared and not (reply or rank) then
    local _, share = share_of(terms)
    rank = share and redis.call('ZRANK', PARKED, parked_as(share, string.match(record, '%d+'), token))
    rank = rank and rank + redis.call('ZCARD', QUEUE) -- behind the whole queue
  end
  if not reply and not rank then reply = 'gone' end -- the waiter was removed, as it needs more than the new limit
elseif permits > limit or name.seen ~= wants then
  reply = mismatch(name, wants, permits, limit, waiting)
end
if not (reply or rank) then
  reply, rank = place_newcomer(name, base, permits, limit, waiting)
end
if rank then
  reply = wait(name, token, rank, channel)
end
if name.puts[1] or name.dropped or me then
  finish(name)
end
return reply
