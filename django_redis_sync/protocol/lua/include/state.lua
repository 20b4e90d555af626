-- The clock, read once, and the fields of the name. Every verb starts here.
-- Invariant: every live key of the name expires at '#expiry' (or never, when that is inf), and
-- '#expiry' is later than every lease end and waiter deadline by GRACE.
-- Invariant: '#extra' = sum over the leases of (weight - 1), so that ZCARD + extra permits are used.
local call = redis.call
local LEASES, QUEUE, WAITERS, INFO = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token = ARGV[1]
local WAKE = string.sub(KEYS[5], 1, #KEYS[5] - #token)
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local now = math.floor(us / 1000)
local meta = call('HMGET', INFO, token, '#fence', '#expiry', '#extra', '#limit', '#paused', '#seen', '#peak')
local record, override, paused, seen = meta[1], meta[5] and tonumber(meta[5]), meta[6], meta[7]
local fence, expiry = tonumber(meta[2] or 0), tonumber(meta[3] or 0)
local card = call('ZCARD', LEASES)
local stored = tonumber(meta[4] or 0)
local extra = card > 0 and stored or 0
local puts, fresh, latest, recount = {}, {}, now, false

-- 1790000000000000 prints as 1.79e+15 through '..': format it. %d is the cheaper one, and takes a
-- number of 32 bits where the server was built for that.
local WHOLE = string.format('%d', 2 ^ 53) == '9007199254740992' and '%d' or '%.0f'
local function whole(n) return n == math.huge and 'inf' or string.format(WHOLE, n) end
local function put(field, value) puts[#puts + 1] = field; puts[#puts + 1] = value end
-- permits 0 asks for the name alone: it weighs more than any limit.
local function weight(permits) return permits == 0 and EXCLUSIVE or permits end

local function place(key, score, member)
  call('ZADD', key, whole(score), member)
  fresh[key] = true
  latest = math.max(latest, score)
end

-- A record: state, fence, lease, permits, limit, wake channel, label. The states: n new, w waiting,
-- g granted by hand-over, h held, k kept after its release (min_hold), x buried; behind the state
-- the number of the newest renewal, if there was one.
local function format(r)
  return r.state .. (r.nth or '') .. ' ' .. r.fence .. ' ' .. whole(r.lease) .. ' ' .. whole(r.permits) ..
    ' ' .. whole(r.limit) .. ' ' .. r.channel .. ' ' .. r.label
end
