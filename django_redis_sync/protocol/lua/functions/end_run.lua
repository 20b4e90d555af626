-- End the job `id`, which the holder of `token` has finished. Remove the job's record. If the task queue may
-- deliver the job again, mark the record as ended instead, so that this delivery is dropped.
-- `own`: the fence of the job's lease. Also update the mean time for which jobs hold a permit.
local function end_run(name, id, token, own)
  local base = string.sub(LEASES, 1, -7)
  local state, nth, owner, ticket, vain, seen, share, job = string.match(redis.call('HGET', INFO, id) or '', JOB)
  if state ~= 'r' or owner ~= token then return end
  if seen == '0' then
    remove_job(base, id)
  else
    retry_write('HSET', INFO, id, 'd ' .. nth .. ' ' .. token .. ' ' .. ticket .. ' ' .. vain .. ' 1 ' .. share .. ' ' .. job)
  end
  local held = own and math.max(0, name.now - own / 1000)
  local mean = tonumber(redis.call('HGET', INFO, '#hold') or held)
  if held then
    retry_write('HSET', INFO, '#hold', string.format('%.1f', mean * 0.9 + held * 0.1))
  end
end
