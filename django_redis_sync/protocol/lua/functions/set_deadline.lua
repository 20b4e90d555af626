-- Set when a waiter counts as dead, or the channel of an event loop with all its waiters. If a process with thousands of
-- waiters dies, the deadline of its channel passes long before the waiters deep in the queue are due.
local function set_deadline(name, member, ends)
  local text = string.format(name.format, ends)
  local added = tonumber(redis.pcall('ZADD', WAITERS, text, member))
  if not added then
    added = retry_write('ZADD', WAITERS, text, member)
  end
  if added == 1 then name.new_waiters = true end
  if ends > name.latest then name.latest = ends end
end
