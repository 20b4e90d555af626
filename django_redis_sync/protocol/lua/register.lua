-- register: add a name to the index of holders, unless the index has the name with an earlier time.
-- KEYS holders
--   holders: a sorted set of names. The score of a name is the time in ms of its oldest grant.
-- ARGV since member
-- Returns "ok"
redis.call('ZADD', HOLDERS, 'LT', ARGV[1], ARGV[2])
return 'ok'
