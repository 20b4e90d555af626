-- Read the name. Return its fields, and the record of the token (false if it has none). `us`: the time in
-- microseconds if this script has read it, else nil. A script comes here if the compact state isn't enough. If
-- it changes something, it calls `finish` at its end. A field is a position in a list, which costs a third of a hash.
-- FIELDS us now at minute format keep stats fence expiry card extra stored override paused seen peak places
-- FIELDS puts latest new_leases new_queue new_waiters recount dropped more head head_ends asker visitor shared
-- Invariant: every live key of the name expires at '#expiry' (or never, when that is inf), and
-- '#expiry' is later than every lease end and waiter deadline by GRACE.
-- Invariant: '#extra' = sum over the leases of (weight - 1), so that ZCARD + extra permits are used.
local function open(token, keep, us)
  if not us then -- this script has not read the clock yet
    local time = redis.call('TIME')
    us = time[1] * 1000000 + time[2]
  end
  local now = (us - us % 1000) / 1000
  -- 1790000000000000 prints as 1.79e+15 through '..': numbers have to be formatted. %d is the cheapest
  -- way, and takes a number of 32 bits where the server was built for that.
  local format, at = '%d', string.format('%d', now)
  if #at ~= 13 then format, at = '%.0f', string.format('%.0f', now) end
  local minute, stats = false, string.sub(LEASES, 1, -7) .. 'stats' -- as text, once `count` needed it

  local meta = redis.call('HMGET', INFO, token, '#fence', '#expiry', '#extra', '#limit', '#paused', '#seen', '#peak', '#places', '#shares', '#lone')
  local card = redis.pcall('ZCARD', LEASES)
  if meta[11] or not tonumber(card) then -- a script stopped between the two states
    local packed = meta[11] or redis.call('HGET', LEASES, '#')
    if packed then
      expand(packed)
    end
    meta = redis.call('HMGET', INFO, token, '#fence', '#expiry', '#extra', '#limit', '#paused', '#seen', '#peak', '#places', '#shares')
    card = redis.call('ZCARD', LEASES)
  end
  local fence, expiry, stored = tonumber(meta[2] or 0), tonumber(meta[3] or 0), tonumber(meta[4] or 0)
  local override, paused, seen, peak, places = meta[5] and tonumber(meta[5]), meta[6], meta[7], meta[8], meta[9]
  local extra = card > 0 and stored or 0
  if paused then
    paused = pause_ends(paused) > now and paused
  end

  local puts = {nil, nil, nil, nil, nil, nil, nil, nil} -- to be stored by `finish`; room that need not grow
  local latest = now -- the latest end or deadline that this script wrote
  local new_leases, new_queue, new_waiters = false, false, false -- maybe made here: they need an expiry
  local recount, dropped = false, false -- something without an end, or anything at all, was removed
  local more = false -- there is more to remove than one script may
  local head, head_ends = false, false -- the channel of the head that was left waiting, and when it counts as dead
  local visitor = false -- the place of the job that asks
  local asker = false -- the channel of the event loop that asks: it is there
  local shared = meta[10] -- the fence of the first of the present leases, if a caller gave a share
  return {FIELDS}, meta[1]
end
