-- renew: change the end of a lease, or confirm that it is held.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token fence how ms nth known keep job
--   fence: the fencing token of the lease
--   how: one of these words:
--     "set": the lease ends `ms` from now
--     "begin": as "set", for the lease of a job. With "begin" and "adopt", the job begins to run.
--     "adopt": as "set", for a new owner that takes over a detached lease
--     "confirm": only a question: the script writes nothing
--   ms: the new lease duration in ms, or inf
--   nth: number of this renewal. After a renewal with a higher number, a renewal changes nothing.
--   job: the ID of the job that the lease runs, if any
--   known: only for "adopt": above each `nth` of the former owner. A lease with a higher `nth` is already adopted.
-- Returns one of these texts:
--   "ok LEASE": the caller holds the lease. LEASE: ms left, or inf.
--   "lost": the lease has expired, or has another fence. Nothing changed.
--   "adopted": another owner has adopted the lease.
--   "runs": another delivery of the job runs, so it must not begin. Nothing changed.
--   "ended": the job has ended, so it must not begin again. Nothing changed.
--   "cleared": an operator cleared the job. Nothing changed.
local token, fence, how, ms, nth, known, keep, job = unpack(ARGV)
local base = string.sub(LEASES, 1, -7)
local packed, us, last, expiry, lease_ends, seen, peak, holder, at = compact_state(base)
if packed then
  local now = (us - us % 1000) / 1000
  if holder ~= token or lease_ends <= now or last ~= tonumber(fence) then return 'lost' end
  local _, newest, _, _, terms = string.match(packed, RECORD, at)
  local latest = tonumber(newest) or 0
  if how == 'adopt' and latest > tonumber(known) and latest ~= tonumber(nth) then return 'adopted' end
  if how == 'confirm' or tonumber(nth) < latest then return 'ok ' .. string.format('%.0f', lease_ends - now) end
  local denied = (job or '') ~= '' and keep_run(base, job, token, now, now + tonumber(ms), how ~= 'set')
  if denied then return denied end
  if ms ~= 'inf' then
    local record, ends = 'h' .. nth .. ' ' .. fence .. ' ' .. ms .. ' ' .. terms, now + tonumber(ms)
    local later = ends + GRACE > expiry
    if later then expiry = ends + 2 * GRACE end
    local moved = struct.pack(PACKED, FORMAT, last, expiry, ends, seen, peak, token, record)
    if not tonumber(redis.pcall('HSET', LEASES, '#', moved)) then
      retry_write('HSET', LEASES, '#', moved)
    end
    if later then redis.call('PEXPIREAT', LEASES, string.format('%.0f', expiry)) end
    return 'ok ' .. ms
  end
  redis.call('DEL', NEVER)
  expand(packed)
end
local name, record = open(token, keep, us, '-')
local state, newest, own, lease, terms = string.match(record or '', RECORD)
local ends = tonumber(state and redis.call('ZSCORE', LEASES, token) or 0)
if ends <= name.now or own ~= fence then return 'lost' end
-- Redis also answers questions when it denies writes, for example because too few replicas are connected.
if how == 'confirm' then
  return 'ok ' .. whole(name, ends - name.now)
end
local coming, latest = tonumber(nth), tonumber(newest) or 0
if how == 'adopt' and latest > tonumber(known) and latest ~= coming then return 'adopted' end
local denied = (job or '') ~= '' and keep_run(base, job, token, name.now, name.now + tonumber(ms), how ~= 'set')
if denied then return denied end
if state == 'g' then
  claim(token)
end
if coming >= latest then
  if ends == math.huge then name.recount = true end
  ends, lease, newest, name.latest = name.now + tonumber(ms), ms, nth, math.max(name.latest, name.now + tonumber(ms))
  if not tonumber(redis.pcall('ZADD', LEASES, whole(name, ends), token)) then
    retry_write('ZADD', LEASES, whole(name, ends), token)
  end
end
put(name, token, 'h' .. newest .. ' ' .. own .. ' ' .. lease .. ' ' .. terms)
finish(name)
return 'ok ' .. whole(name, ends - name.now)
