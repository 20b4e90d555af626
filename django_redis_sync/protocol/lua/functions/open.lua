-- Read a name in the expanded state. Return two values: the fields below, and the record of `token` (or false).
-- `keep`: minutes of history. `us`: the time in microseconds, or nil to read the clock. `overrides`: see apply_override.
-- If a script changes fields, it calls `finish` at its end. The composer replaces `name.field` by `name[number]`,
-- because Lua reads a numbered item three times as fast.
-- FIELDS us now at minute format keep stats fence expiry card extra stored override paused seen peak
-- FIELDS puts latest new_leases new_queue new_waiters recount dropped more head head_ends asker shared rate most log opens cooled clash joined
-- After each script, this is true ('#…' is a field of the hash INFO):
-- - Every key of the name expires at '#expiry' (inf: never), at least GRACE after every deadline and lease end.
-- - '#extra' is the sum of (weight - 1) over all leases. So number of leases + '#extra' = permits in use.
local function open(token, keep, us, overrides)
  if not us then
    local time = redis.call('TIME')
    us = time[1] * 1000000 + time[2]
  end
  local now = (us - us % 1000) / 1000
  -- Numbers need a format, because '..' would turn 1790000000000000 into 1.79e+15. '%d' is the fastest format, but
  -- has only 32 bits on some servers.
  local format, at = '%d', string.format('%d', now)
  if #at ~= 13 then format, at = '%.0f', string.format('%.0f', now) end
  local minute, stats = false, string.sub(LEASES, 1, -7) .. 'stats' -- minute: a text, which `count` sets

  local meta = redis.call('HMGET', INFO, token, '#fence', '#expiry', '#extra', '#limit', '#paused', '#seen', '#peak', '#shares', '#lone', '#rate', '#cool', '#clash')
  local card = redis.pcall('ZCARD', LEASES)
  if meta[10] or not tonumber(card) then -- an earlier script stopped while it expanded the state
    -- If another program wrote LEASES, this raises an error.
    expand(meta[10] or redis.call('HGET', LEASES, '#') or redis.call('ZCARD', LEASES))
    return open(token, keep, us, overrides)
  end
  local fence, expiry, stored = tonumber(meta[2] or 0), tonumber(meta[3] or 0), tonumber(meta[4] or 0)
  local override, paused, seen, peak = meta[5] and tonumber(meta[5]), meta[6], meta[7], meta[8]
  local extra = card > 0 and stored or 0
  if paused then
    paused = pause_ends(paused) > now and paused
  end

  local puts = {nil, nil, nil, nil, nil, nil, nil, nil} -- list of fields for `finish` to store; preallocated
  local latest = now -- the latest end of a lease, or deadline, that this script wrote
  local new_leases, new_queue, new_waiters = false, false, false -- true if this script may have created the key
  local recount, dropped = false, false -- recount: `finish` must call latest_of_all; dropped: an entry was removed
  local more = false -- true if more entries have expired than one script may remove
  local head, head_ends = false, false -- head: channel of the first waiter; head_ends: when it counts as dead
  local asker = false -- channel of the caller's event loop. The call shows that this loop is alive
  local shared = meta[9] -- for a name with shares: fence of the first lease since the name last had no leases
  local rate, log, opens = meta[11], false, 0 -- rate: see begin_rate; log: see rate_log; opens: see fits
  local most = rate and tonumber(string.match(rate, '^%d+')) or EXCLUSIVE -- permits of the rate; else more than any limit
  local cooled = false -- true if the end of a cool-down is in the future
  local clash = meta[13] -- false if all callers agree on the limit (see mismatch)
  local joined = false -- true if the caller waits behind another waiter, so that WAITERS exists
  local name = {FIELDS}
  if overrides and overrides ~= '-' then
    apply_override(name, overrides)
  end
  if meta[12] then
    cool(name, meta[12])
  end
  return name, meta[1]
end
