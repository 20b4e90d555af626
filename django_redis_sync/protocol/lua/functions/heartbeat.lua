-- Store the heartbeat of an event loop, whose waiters share a channel. All its waiters count as alive as
-- long: those deep in the queue ask seldom, and if thousands are killed together, no one waits for them.
-- The entry is among the deadlines, under the channel.
local function heartbeat(name, channel)
  local ends = name.now + ALIVE
  local added = tonumber(redis.pcall('ZADD', WAITERS, string.format(name.format, ends), channel))
  if not added then
    added = retry_write('ZADD', WAITERS, string.format(name.format, ends), channel)
  end
  if added == 1 then name.new_waiters = true end
  if ends > name.latest then name.latest = ends end
end
