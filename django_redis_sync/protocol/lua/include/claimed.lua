-- The caller is there: its hand-over needs no deadline and no wake-up any more.
call('ZREM', WAITERS, token)
call('DEL', KEYS[5])
