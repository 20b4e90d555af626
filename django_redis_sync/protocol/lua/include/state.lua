-- The clock, read once, and the fields of the name. Every verb starts here.
-- The server makes a function anew in every run and pays for each variable that it takes from
-- outside, so the includes are blocks that stand in line, on the locals that their heads name.
-- Invariant: every live key of the name expires at '#expiry' (or never, when that is inf), and
-- '#expiry' is later than every lease end and waiter deadline by GRACE.
-- Invariant: '#extra' = sum over the leases of (weight - 1), so that ZCARD + extra permits are used.
local call = redis.call
local LEASES, QUEUE, WAITERS, INFO, STATS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]
local token = ARGV[1]
local WAKE = string.sub(KEYS[5], 1, #KEYS[5] - #token)
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local now = (us - us % 1000) / 1000
local meta = call('HMGET', INFO, token, '#fence', '#expiry', '#extra', '#limit', '#paused', '#seen', '#peak')
local record, override, paused, seen = meta[1], meta[5] and tonumber(meta[5]), meta[6], meta[7]
local fence, expiry = tonumber(meta[2] or 0), tonumber(meta[3] or 0)
local card = call('ZCARD', LEASES)
local stored = tonumber(meta[4] or 0)
local extra = card > 0 and stored or 0
-- `fresh`: keys that may have been made in this run, and need an expiry; `latest`: the latest end or
-- deadline; `dropped`: whether anything was removed.
local puts, fresh, latest, recount, dropped = {}, {}, now, false, false

-- 1790000000000000 prints as 1.79e+15 through '..': format it. %d is the cheaper one, and takes a
-- number of 32 bits where the server was built for that.
local WHOLE, at = '%d', string.format('%d', now)
if #at ~= 13 then WHOLE, at = '%.0f', string.format('%.0f', now) end
local function whole(n) return n == math.huge and 'inf' or string.format(WHOLE, n) end
local function put(field, value) puts[#puts + 1] = field; puts[#puts + 1] = value end

-- A record: state and number of the newest renewal, if there was one; fence, lease, permits, limit,
-- wake channel, label. The states: w waiting, g granted by hand-over, h held, k kept after
-- its release (min_hold), x buried.
local RECORD = '^(%a)(%d*) (%d+) (%S+) (%d+) (%d+) (%S+) (.*)$'
local minute = (now - now % 60000) / 60000
