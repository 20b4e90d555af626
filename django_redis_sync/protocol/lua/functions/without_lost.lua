-- Return the rank of a job without the jobs that seem lost. A job seems lost if it is overdue by TURN.
-- `rank`: number of jobs before this job. If `most` of them do not seem lost, return `rank` unchanged.
-- If the name has shares, `own` is the job's member of the set `placed`, and `shares` is the number of shares with jobs.
local function without_lost(name, base, rank, most, own, shares)
  local present = 0
  for skip = 0, BOUND * (ROUNDS - 1), BOUND do
    local before
    if own then
      local share = string.match(own, '^%S* ')
      before = redis.call('ZRANGEBYLEX', base .. 'placed', '[' .. share, '(' .. own, 'LIMIT', skip, BOUND)
    else
      before = redis.call('ZRANGE', base .. 'places', skip, math.min(rank, skip + BOUND) - 1)
    end
    for _, member in ipairs(before) do
      local due = redis.call('ZSCORE', base .. 'due', string.match(member, '%S+$')) or 0
      if tonumber(due) + TURN > name.now then
        present = present + shares
        if present >= most then return rank end
      end
    end
    if #before < BOUND then return present end
  end
  return rank
end
