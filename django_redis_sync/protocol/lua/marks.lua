-- marks: what operators paused and resized, of all names.
-- KEYS marks
-- Returns fields and values in turn
return redis.call('HGETALL', MARKS)
