-- Store the heartbeat of an event loop, whose waiters share a channel, as a deadline of the channel. If a process with
-- thousands of waiters dies, this deadline passes long before the waiters deep in the queue are due.
local function heartbeat(name, channel)
  local ends = name.now + ALIVE
  local added = tonumber(redis.pcall('ZADD', WAITERS, string.format(name.format, ends), channel))
  if not added then
    added = retry_write('ZADD', WAITERS, string.format(name.format, ends), channel)
  end
  if added == 1 then name.new_waiters = true end
  if ends > name.latest then name.latest = ends end
end
