-- Store the record of a job, and when it is due. `state`: a (away), r (running), d (ended, but the task queue may
-- deliver it again), or c (cleared by an operator). `nth`: the number of the next delivery. `token`: the token of the
-- last delivery. While the job runs, it is also the token of the job's lease. `vain`: how many times the job got no
-- permit although its turn was near. `seen`: 1 if the task queue may deliver the same message again, else 0.
local function note_place(name, base, place, state, nth, token, ticket, vain, seen, share, job, due)
  redis.call('ZADD', base .. 'due', string.format(name.format, due), place)
  local head = state .. ' ' .. nth .. ' ' .. token .. ' ' .. string.format(name.format, ticket)
  put(name, place, head .. ' ' .. vain .. ' ' .. seen .. ' ' .. share .. ' ' .. job)
  name.latest = math.max(name.latest, due + PLACE_LIFE)
end
