-- Read the record of the job `id`. Return nothing if there is none, or these three texts:
-- - the state: r (the lease of the token runs the job), e (the job has run, and Celery has not yet finished with it),
--   d (the job has ended), c (an operator cleared it), or s (the job has copies, and does not run)
-- - the token of the lease, or '-'
-- - 1 if the broker delivered the job more than once, else 0
local function run_of(base, id)
  return string.match(redis.call('HGET', base .. 'job:' .. id, 'run') or '', '^(%a) (%S+) (%d)$')
end
