-- Set when a waiter counts as dead, or when an event loop (`member`: its channel) counts as dead with all its waiters.
-- If a process with thousands of waiters dies, the deadline of its channel passes long before those of the waiters deep
-- in the queue.
local function set_deadline(name, member, ends)
  local text = string.format(name.format, ends)
  local added = tonumber(redis.pcall('ZADD', WAITERS, text, member))
  if not added then
    added = retry_write('ZADD', WAITERS, text, member)
  end
  if added == 1 then name.new_waiters = true end
  if ends > name.latest then name.latest = ends end
end
