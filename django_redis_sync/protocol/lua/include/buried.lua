-- A buried token is never granted again: late copies of its acquire find this.
call('HSET', INFO, token, 'x 0 0 0 0 - ')
call('ZADD', WAITERS, whole(now + BURIAL), token)
fresh[#fresh + 1] = WAITERS
latest = math.max(latest, now + BURIAL)
