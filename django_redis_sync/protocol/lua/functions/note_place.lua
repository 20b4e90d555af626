-- Store the record of the job `place`, and `due`, the time when the job is due, in server ms.
-- - `state`: a (away), r (running), d (ended, but the task queue may deliver it again), or c (cleared by an operator)
-- - `nth`: the number of the next delivery, or of the last one if the job is not away
-- - `token`: the token of the last delivery. While the job runs, its lease has this token.
-- - `ticket`: the time of the first delivery, in microseconds
-- - `vain`: how many times the job got no permit although its turn was near
-- - `seen`: 1 if the task queue may deliver the same message again, else 0
-- - `share`: "/" and the share, or '' if the name has no shares
-- - `job`: a text for operators
local function note_place(name, base, place, state, nth, token, ticket, vain, seen, share, job, due)
  redis.call('ZADD', base .. 'due', string.format(name.format, due), place)
  local head = state .. ' ' .. nth .. ' ' .. token .. ' ' .. string.format(name.format, ticket)
  put(name, place, head .. ' ' .. vain .. ' ' .. seen .. ' ' .. share .. ' ' .. job)
  name.latest = math.max(name.latest, due + PLACE_LIFE)
end
