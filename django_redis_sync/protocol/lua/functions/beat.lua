-- A waiter of an event loop is there, and so are all of that loop, which share a channel: deep in the
-- queue they ask seldom, and of thousands that were killed together none has to be waited for. The
-- mark lies among the deadlines, under the channel.
local function beat(name, channel)
  local ends = name.now + ALIVE
  local added = tonumber(redis.pcall('ZADD', WAITERS, string.format(name.format, ends), channel))
  if not added then
    added = insist('ZADD', WAITERS, string.format(name.format, ends), channel)
  end
  if added == 1 then name.new_waiters = true end
  if ends > name.latest then name.latest = ends end
end
