-- Return true if a newcomer must not wait, because there are already `max_waiters` waiters. The jobs that workers hold in
-- their memory count as waiters. For the worker of such a job they don't count, and `max_waiters` is negative.
local function crowded(name, waiting, max_waiters)
  local most = tonumber(max_waiters or ANY)
  if most < 0 then return waiting >= -most end
  if waiting < most and most < ANY then
    waiting = waiting + held_jobs(name.now)
  end
  return waiting >= most
end
