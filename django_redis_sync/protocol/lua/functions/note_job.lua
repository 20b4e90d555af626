-- Store the record of the job `id`, and `due`, the time in server ms when the job is due.
-- - `id`: the ID of the job
-- - `state`: a (away: the task queue will deliver it again), r (running), d (ended, but the task queue may deliver it
--   again), or c (cleared by an operator)
-- - `nth`: number of the next delivery if the job is away. Otherwise, number of the last delivery.
-- - `token`: the token of the last delivery. While the job runs, its lease has this token.
-- - `ticket`: the time of the first delivery, in microseconds
-- - `vain`: number of deliveries without a permit, although the job was near the head of the queue
-- - `seen`: 1 if the task queue may deliver the same message again, else 0
-- - `share`: "/" and the share, or '' if the name has no shares
-- - `job`: a text for operators
local function note_job(name, base, id, state, nth, token, ticket, vain, seen, share, job, due)
  redis.call('ZADD', base .. 'due', string.format(name.format, due), id)
  local head = state .. ' ' .. nth .. ' ' .. token .. ' ' .. string.format(name.format, ticket)
  put(name, id, head .. ' ' .. vain .. ' ' .. seen .. ' ' .. share .. ' ' .. job)
  name.latest = math.max(name.latest, due + PLACE_LIFE)
end
