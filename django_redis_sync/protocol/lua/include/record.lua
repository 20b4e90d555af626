-- What there is of a token.
local function parse(text)
  local state, nth, f, lease, permits, limit, channel, label =
    string.match(text or '', '^(%a)(%d*) (%d+) (%S+) (%d+) (%d+) (%S+) (.*)$')
  return {state = state, nth = nth, fence = f, lease = tonumber(lease), permits = tonumber(permits),
    limit = tonumber(limit), channel = channel, label = label}
end

-- The caller is there: its hand-over needs no deadline and no wake-up any more.
local function claim(r, ends)
  call('ZREM', WAITERS, token)
  call('DEL', KEYS[5])
  return {'ok', r.fence, whole(ends - now)}
end

-- Removing: always everything that a token has, so that nothing of it can be believed later.
-- `r`, `ends`: its record and the score of its lease, where they are known. Returns whether a
-- holder lost its lease by this. `dropped`: whether anything was removed in this run.
local dropped = false
local function drop(t, r, ends)
  dropped = true
  r = r or parse(call('HGET', INFO, t))
  if ends == nil then ends = call('ZSCORE', LEASES, t) end
  if ends then
    call('ZREM', LEASES, t)
    card = card - 1
    extra = card > 0 and extra - weight(r.permits or 1) + 1 or 0
    if ends == 'inf' then recount = true end
  end
  if r.state ~= 'h' then
    call('ZREM', QUEUE, t)
    call('ZREM', WAITERS, t)
    call('DEL', WAKE .. t)
  end
  call('HDEL', INFO, t)
  return ends and r.state ~= 'k'
end

-- A buried token is never granted again: late copies of its acquire find this.
local function bury(t)
  call('HSET', INFO, t, 'x 0 0 0 0 - ')
  fresh[INFO] = true
  place(WAITERS, now + BURIAL, t)
end
