-- Serve the waiters that come before the job `id`. First remove expired leases, dead waiters, and jobs that did not
-- come back. Then grant free permits to waiters.
local function serve_others(name, base, id, terms)
  if not name.shared then
    begin_shares(name, terms)
  end
  local waiting = redis.call('ZCARD', QUEUE)
  if waiting > 0 or name.card > 0 then
    sweep(name, nil)
  end
  local before = string.format(name.format, name.now - PLACE_LIFE)
  for _, one in ipairs(redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', before, 'LIMIT', '0', BOUND)) do
    local state, _, token = string.match(redis.call('HGET', INFO, one) or '', JOB)
    if state == 'r' and tonumber(redis.call('ZSCORE', LEASES, token) or 0) > name.now then
      redis.call('ZADD', base .. 'due', name.at, one) -- the job runs, so keep its record
    else -- the job did not come back, or its lease has ended
      remove_job(base, one)
      if state == 'a' then
        count(name, 'x', 1)
      end
    end
  end
  if waiting > 0 then
    hand_off(name, nil)
  end
  name.visitor = id -- from here on, `fits` counts a permit that is reserved for this job as free
  if not name.places or string.match(name.places, '%S*$') == id then -- end the reservation for this job
    name.places = ''
    put(name, '#places', '')
  end
end
