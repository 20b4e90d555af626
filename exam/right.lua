-- A fair, fenced semaphore. It is correct if `defects` is empty. The client inserts a first line, which sets two local
-- variables: `defects`, and `what` to do: acquire, renew, or release.
-- KEYS:
--   leases: sorted set of the holders' tokens, by the time at which the lease ends
--   queue: sorted set of the waiters' tokens, by the number of their first try
--   seen: sorted set of the waiters' tokens, by the time of their last try
--   fence: the number of the last acquire request
-- ARGV: token, limit, lease in ms, the client's time in ms
-- If an acquire succeeds, return the fence. If a renewal or a release succeeds, return 1. Otherwise, return 0.
local leases, queue, seen, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, limit, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function has(defect)
    return string.find(defects, defect, 1, true)
end

if has('client-time') then
    now = tonumber(ARGV[4])
end

if what == 'release' then
    redis.call('ZREM', queue, token)
    redis.call('ZREM', seen, token)
    if has('subscribes-late') then
        redis.call('PUBLISH', leases, token)
    end
    if has('releases-any') then
        return #redis.call('ZPOPMIN', leases)
    end
    return redis.call('ZREM', leases, token)
end

if what == 'renew' then
    if has('takes-over') and not redis.call('ZSCORE', leases, token) then
        redis.call('ZPOPMIN', leases)
    elseif (tonumber(redis.call('ZSCORE', leases, token)) or 0) <= now and not has('revives') then
        return 0
    end
    redis.call('ZADD', leases, now + lease, token)
    return 1
end

if not has('endless') then
    redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
local patience = has('keeps-waiters') and now or 1500
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', now - patience)) do
    redis.call('ZREM', queue, gone)
    redis.call('ZREM', seen, gone)
end
local last = has('fence-by-clock') and 0 or tonumber(redis.call('GET', fence)) or 0
local number = math.max(last + 1, now)
redis.call('SET', fence, string.format('%.0f', number))
if redis.call('ZSCORE', leases, token) then
    if has('takes-twice') then
        redis.call('ZADD', leases, now, token .. ' again')
    end
    return number
end
redis.call('ZADD', seen, now, token)
if not redis.call('ZSCORE', queue, token) then
    redis.call('ZADD', queue, number, token)
end
local rank = has('newest-first') and 'ZREVRANK' or 'ZRANK'
if redis.call(rank, queue, token) >= limit - redis.call('ZCARD', leases) then
    return 0
end
redis.call('ZREM', queue, token)
redis.call('ZREM', seen, token)
if not has('two-steps') then
    redis.call('ZADD', leases, now + lease, token)
end
if has('one-end') then -- a grant extends the leases of all holders
    for _, each in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
        redis.call('ZADD', leases, now + lease, each)
    end
end
return number
