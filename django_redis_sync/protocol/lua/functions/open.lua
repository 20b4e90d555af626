-- Read a name that is in the expanded state, with one record for each token. Return two values: a Lua table with the
-- fields that are listed below, and the record of `token` (false if it has none).
-- `keep`: minutes of history. `us`: the time in microseconds if this script has read the clock, else nil. `mark`: see
-- apply_override.
-- A script that changes fields calls `finish` at its end. The composer replaces `name.field` by `name[number]`, because
-- Lua reads an item by number in a third of the time. Below, '#…' is a field of the hash INFO.
-- FIELDS us now at minute format keep stats fence expiry card extra stored override paused seen peak places
-- FIELDS puts latest new_leases new_queue new_waiters recount dropped more head head_ends asker visitor shared
-- Invariant: every key of the name expires at '#expiry' (never if that is inf), and '#expiry' is at least GRACE later
-- than every lease end and every deadline.
-- Invariant: '#extra' = sum over the leases of (weight - 1). So ZCARD + extra permits are in use.
local function open(token, keep, us, mark)
  if not us then
    local time = redis.call('TIME')
    us = time[1] * 1000000 + time[2]
  end
  local now = (us - us % 1000) / 1000
  -- '..' would turn 1790000000000000 into 1.79e+15, so numbers are formatted. '%d' is the cheapest format,
  -- but some servers are built with 32 bits for it.
  local format, at = '%d', string.format('%d', now)
  if #at ~= 13 then format, at = '%.0f', string.format('%.0f', now) end
  local minute, stats = false, string.sub(LEASES, 1, -7) .. 'stats' -- minute: text, set by `count`

  local meta = redis.call('HMGET', INFO, token, '#fence', '#expiry', '#extra', '#limit', '#paused', '#seen', '#peak', '#places', '#shares', '#lone')
  local card = redis.pcall('ZCARD', LEASES)
  if meta[11] or not tonumber(card) then -- a script stopped while it changed the state
    -- if another program wrote a value into LEASES, ZCARD raises the error
    expand(meta[11] or redis.call('HGET', LEASES, '#') or redis.call('ZCARD', LEASES))
    return open(token, keep, us, mark)
  end
  local fence, expiry, stored = tonumber(meta[2] or 0), tonumber(meta[3] or 0), tonumber(meta[4] or 0)
  local override, paused, seen, peak, places = meta[5] and tonumber(meta[5]), meta[6], meta[7], meta[8], meta[9]
  local extra = card > 0 and stored or 0
  if paused then
    paused = pause_ends(paused) > now and paused
  end

  local puts = {nil, nil, nil, nil, nil, nil, nil, nil} -- fields that `finish` stores; preallocated
  local latest = now -- latest end or deadline that this script wrote
  local new_leases, new_queue, new_waiters = false, false, false -- true if the script may have created the key
  local recount, dropped = false, false -- recount: an entry without an end was removed; dropped: any entry was removed
  local more = false -- more has expired than one script may remove
  local head, head_ends = false, false -- channel of the queue's first waiter, and when this waiter counts as dead
  local visitor = false -- place of the job that visits
  local asker = false -- channel of the calling event loop, which is alive
  local shared = meta[10] -- for a name with shares: fence of the first grant after the name had no leases
  local name = {FIELDS}
  if mark and mark ~= '-' then
    apply_override(name, mark)
  end
  return name, meta[1]
end
