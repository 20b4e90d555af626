-- Drop a job that is away: its next delivery ends without a permit. Return false if the job is not away.
local function drop_place(name, place, known)
  local base = string.sub(LEASES, 1, -7)
  local state, nth, token, ticket, _, _, share, job = string.match(known or '', PLACE)
  if state ~= 'a' then return false end
  local due = math.max(name.now, tonumber(redis.call('ZSCORE', base .. 'due', place)))
  redis.call('DEL', NEVER)
  remove_place(base, place)
  note_place(name, base, place, 'c', nth, token, tonumber(ticket), 0, 1, share, job, due)
  return true
end
