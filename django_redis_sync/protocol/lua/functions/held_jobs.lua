-- Return two values: the number of jobs that workers hold in their memory, and a flat list with the ID of each worker
-- and its number of jobs. `now`: the time in server ms.
local function held_jobs(now)
  local all, found, total = redis.call('HGETALL', string.sub(LEASES, 1, -7) .. 'held'), {}, 0
  for i = 1, #all, 2 do
    local jobs, ends = string.match(all[i + 1], '^(%d+) (%d+)$')
    if tonumber(ends or 0) > now then
      total = total + tonumber(jobs)
      found[#found + 1], found[#found + 2] = all[i], jobs
    end
  end
  return total, found
end
