-- Store the record of a job, and when it is due. `state`: a (away), r (running), d (ended, with a copy around), or
-- c (cleared by an operator); `nth`: number of the next delivery; `token`: of its last visit or its lease; `vain`: how
-- many times it came in vain; `seen`: 1 if a copy of it may exist.
local function note_place(name, base, place, state, nth, token, ticket, vain, seen, share, job, due)
  redis.call('ZADD', base .. 'due', string.format(name.format, due), place)
  local head = state .. ' ' .. nth .. ' ' .. token .. ' ' .. string.format(name.format, ticket)
  put(name, place, head .. ' ' .. vain .. ' ' .. seen .. ' ' .. share .. ' ' .. job)
  name.latest = math.max(name.latest, due + PLACE_LIFE)
end
