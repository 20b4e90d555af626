-- Store what is known of a job, and when it is due. `state`: a away, r it runs, d it ended while a copy of
-- it was about, c an operator dropped it; `nth`: of the next sending; `token`: of its last visit, or of its lease;
-- `vain`: how often it came in vain; `seen`: 1 if there may be a copy of it.
local function note_place(name, base, place, state, nth, token, ticket, vain, seen, share, job, due)
  redis.call('ZADD', base .. 'due', string.format(name.format, due), place)
  local head = state .. ' ' .. nth .. ' ' .. token .. ' ' .. string.format(name.format, ticket)
  put(name, place, head .. ' ' .. vain .. ' ' .. seen .. ' ' .. share .. ' ' .. job)
  name.latest = math.max(name.latest, due + PLACE_LIFE)
end
