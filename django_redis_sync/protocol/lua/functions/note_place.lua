-- Store the record of a job, and when it is due. `state`: a (away), r (running), d (ended, and a copy may come), or
-- c (cleared by an operator); `nth`: number of the next delivery; `token`: of the last visit, or of the lease; `vain`:
-- how many visits of the job were in vain; `seen`: 1 if a copy of the job may exist.
local function note_place(name, base, place, state, nth, token, ticket, vain, seen, share, job, due)
  redis.call('ZADD', base .. 'due', string.format(name.format, due), place)
  local head = state .. ' ' .. nth .. ' ' .. token .. ' ' .. string.format(name.format, ticket)
  put(name, place, head .. ' ' .. vain .. ' ' .. seen .. ' ' .. share .. ' ' .. job)
  name.latest = math.max(name.latest, due + PLACE_LIFE)
end
