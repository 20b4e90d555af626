-- Return the reply to a copy of a job, which is a second delivery by its task queue. Return nil if this delivery may
-- ask for a permit. `known`: the record of the job. `nth`, `token`: number and token of this delivery.
-- - The job has ended, or an operator cleared it: drop this delivery.
-- - The job runs: let the task queue send this copy again later. If the job's lease has expired, return nil.
-- - The job is away, and this is its next delivery: return nil.
-- - The job is away, and its latest delivery repeats the call with the same token: return the lost reply again.
-- - The job is away, and this is a copy of its latest delivery, with another token: let the task queue send it again
--   later. If the job is overdue by TURN, its next delivery seems lost: return nil.
-- - The job is away, and this is a copy of an earlier delivery: drop this copy.
local function answer_copy(name, base, id, known, nth, token)
  local state, next_one, owner, ticket, vain, _, share, job = string.match(known, JOB)
  local due = tonumber(redis.call('ZSCORE', base .. 'due', id) or name.now)
  local ms, noted = nil, due
  if state == 'd' or state == 'c' then return state == 'd' and 'drop copy' or 'drop cleared' end
  if state == 'r' then
    local ends = tonumber(redis.call('ZSCORE', LEASES, owner) or 0)
    if ends <= name.now then return nil end -- the worker died
    local since = tonumber(string.match(redis.call('HGET', INFO, owner) or '', '^%S+ (%d+)') or name.us)
    ms = math.min(math.max(1000, (name.now - since / 1000) / 4), LATEST)
    noted = name.now + ms
  elseif nth >= tonumber(next_one) then
    return nil
  elseif owner == token then -- the call is repeated, because its reply was lost
    ms, nth = math.max(1, due - name.now), next_one
  elseif nth < tonumber(next_one) - 1 then
    return 'drop copy'
  elseif due + TURN > name.now then
    ms = due + TURN - name.now
  else
    return nil -- the next delivery seems lost
  end
  ticket = string.format(name.format, tonumber(ticket))
  if owner ~= token then
    note_job(name, base, id, state, next_one, owner, tonumber(ticket), vain, 1, share, job, noted)
  end
  return 'later ' .. string.format(name.format, math.ceil(ms)) .. ' ' .. nth .. ' ' .. ticket .. ' -1'
end
