-- Store `ends`, the time in server ms from which `member` counts as dead. `member` is a token, or the channel of an
-- event loop. If a channel counts as dead, so do all waiters of its event loop.
-- A waiter far back in the queue sends few heartbeats, so its own deadline is far in the future. The deadline of a
-- channel is near. So if the process of an event loop dies, its waiters count as dead soon.
local function set_deadline(name, member, ends)
  local text = string.format(name.format, ends)
  local added = tonumber(redis.pcall('ZADD', WAITERS, text, member))
  if not added then
    added = retry_write('ZADD', WAITERS, text, member)
  end
  if added == 1 and not name.joined then name.new_waiters = true end
  if ends > name.latest then name.latest = ends end
end
