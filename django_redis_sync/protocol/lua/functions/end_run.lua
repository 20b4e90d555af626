-- The holder of `token` has run the job `id`. If the broker delivered the job more than once, keep its record: until
-- the worker says that Celery has finished with the job, other deliveries wait. They then run if the worker was killed.
-- `now`: the time in server ms.
local function end_run(base, id, token, now)
  local state, owner, copies = run_of(base, id)
  if state ~= 'r' or owner ~= token then return end
  if copies == '0' then
    redis.call('DEL', base .. 'job:' .. id)
  else
    note_run(base, id, 'e', token, '1', now + ENDING)
  end
end
