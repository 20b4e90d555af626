-- Answer a delivery that is a copy of a job, and nil if it is the job itself. A copy of a job that runs is
-- put off, one of a job that ended is dropped. An earlier sending is dropped if a later one was seen; if the
-- later one does not come within TURN of its time, the earlier one is the job.
local function answer_copy(name, base, place, known, nth, token)
  local state, next_one, owner, ticket, vain, _, share, job = string.match(known, PLACE)
  local due = tonumber(redis.call('ZSCORE', base .. 'due', place) or name.now)
  local ms, noted = nil, due
  if state == 'd' or state == 'c' then return state == 'd' and 'drop copy' or 'drop cleared' end
  if state == 'r' then
    local ends = tonumber(redis.call('ZSCORE', LEASES, owner) or 0)
    if ends <= name.now then return nil end -- its worker died
    local since = tonumber(string.match(redis.call('HGET', INFO, owner) or '', '^%S+ (%d+)') or name.us)
    ms = math.min(math.max(1000, (name.now - since / 1000) / 4), LATEST)
    noted = name.now + ms
  elseif nth >= tonumber(next_one) then
    return nil
  elseif owner == token then -- the reply to its visit was lost
    ms, nth = math.max(1, due - name.now), next_one
  elseif nth < tonumber(next_one) - 1 then
    return 'drop copy'
  elseif due + TURN > name.now then
    ms = due + TURN - name.now
  else
    return nil -- but the later one may come yet
  end
  ticket = string.format(name.format, tonumber(ticket))
  if owner ~= token then
    note_place(name, base, place, state, next_one, owner, tonumber(ticket), vain, 1, share, job, noted)
  end
  return 'later ' .. string.format(name.format, math.ceil(ms)) .. ' ' .. nth .. ' ' .. ticket .. ' -1'
end
