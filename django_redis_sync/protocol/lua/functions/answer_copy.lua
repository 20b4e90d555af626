-- Return the reply to a copy, or nil if this delivery counts as the job itself. A copy is a delivery of a job that its
-- task queue has delivered before. `known`: the record of the job. `nth`, `token`: of this delivery.
-- - The job runs: the copy has to come again later. But if the lease of the job has expired, its worker died: return
--   nil.
-- - The job has ended, or an operator cleared it: drop the copy.
-- - The job is away, and this is its next delivery: return nil.
-- - The job is away, and its last delivery calls again, because the reply was lost: return that reply.
-- - The job is away, and this is a copy of its last delivery: it has to come again later. But if the job is overdue by
--   TURN, its next delivery seems lost: return nil.
-- - The job is away, and this is a copy of an earlier delivery: drop the copy.
local function answer_copy(name, base, place, known, nth, token)
  local state, next_one, owner, ticket, vain, _, share, job = string.match(known, PLACE)
  local due = tonumber(redis.call('ZSCORE', base .. 'due', place) or name.now)
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
  elseif owner == token then -- the reply to this delivery was lost
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
    note_place(name, base, place, state, next_one, owner, tonumber(ticket), vain, 1, share, job, noted)
  end
  return 'later ' .. string.format(name.format, math.ceil(ms)) .. ' ' .. nth .. ' ' .. ticket .. ' -1'
end
