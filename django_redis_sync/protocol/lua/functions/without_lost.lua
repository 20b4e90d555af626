-- Return the number of jobs before a job. Jobs that seem lost are not counted. A job seems lost if it is overdue by TURN.
-- - `rank`: number of jobs before this job, with the lost jobs
-- - `enough`: if at least `enough` of these jobs do not seem lost, return `rank`
-- - `own`: the job's member of the set `placed`, or nil if the name has no shares
-- - `shares`: number of shares with jobs, or 1 if the name has no shares. `rank` and the returned number are multiplied
--   by it.
local function without_lost(name, base, rank, enough, own, shares)
  local present, share = 0, own and string.match(own, '^%S* ')
  for skip = 0, BOUND * (ROUNDS - 1), BOUND do
    local before
    if own then
      before = redis.call('ZRANGEBYLEX', base .. 'placed', '[' .. share, '(' .. own, 'LIMIT', skip, BOUND)
    else
      before = redis.call('ZRANGE', base .. 'places', skip, math.min(rank, skip + BOUND) - 1)
    end
    for _, member in ipairs(before) do
      local due = redis.call('ZSCORE', base .. 'due', string.match(member, '%S+$')) or 0
      if tonumber(due) + TURN > name.now then
        present = present + shares
        if present >= enough then return rank end
      end
    end
    if #before < BOUND then return present end
  end
  return rank
end
