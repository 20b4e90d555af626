-- job: note what a worker of a task queue knows about its jobs. The leases of the name don't change.
-- KEYS leases never
--   leases: the leases of the name. never: a key that never exists (see retry_write).
-- ARGV token how id held
--   token: always empty
--   how: one of these words:
--     "seen": the broker delivered the job `id` more than once
--     "ended": the task queue has finished with the job `id`
--     "held": the worker `id` holds `held` further jobs of the name in its memory. This is forgotten after HELD_LIFE.
--   id: the ID of a job, which is a digest, or of a worker
-- Returns one of these texts:
--   "ok": noted
--   "ended": the job has ended. Its other deliveries must not run.
--   "cleared": an operator cleared the job
local _, how, id, held = unpack(ARGV)
local base, time = string.sub(LEASES, 1, -7), redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if how == 'held' then
  if held == '0' then
    redis.call('HDEL', base .. 'held', id)
  else
    local ends = string.format('%.0f', now + HELD_LIFE)
    redis.call('DEL', NEVER)
    redis.call('HSET', base .. 'held', id, held .. ' ' .. ends)
    redis.call('PEXPIREAT', base .. 'held', ends)
  end
  return 'ok'
end
local state, owner, copies = run_of(base, id)
if state == 'd' then return 'ended' end
if state == 'c' then return 'cleared' end
-- the composer inserts here: note_run
if how == 'ended' and copies == '1' then
  note_run(base, id, 'd', '-', '1', now + NOTED)
elseif how == 'seen' and (not state or state == 's') then
  note_run(base, id, 's', '-', '1', now + NOTED)
elseif how == 'seen' then
  redis.call('DEL', NEVER)
  redis.call('HSET', base .. 'job:' .. id, 'run', state .. ' ' .. owner .. ' 1')
end
return 'ok'
