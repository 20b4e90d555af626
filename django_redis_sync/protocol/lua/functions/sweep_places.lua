-- Remove jobs that did not come back, and old records of jobs, up to a bound per script.
local function sweep_places(name, base)
  local before = string.format(name.format, name.now - PLACE_LIFE)
  for _, place in ipairs(redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', before, 'LIMIT', '0', BOUND)) do
    local state, _, token = string.match(redis.call('HGET', INFO, place) or '', PLACE)
    if state == 'r' and tonumber(redis.call('ZSCORE', LEASES, token) or 0) > name.now then
      redis.call('ZADD', base .. 'due', name.at, place) -- keep the record of a running job
    else
      remove_place(base, place)
      if state == 'a' then
        count(name, 'x', 1)
      end
    end
  end
end
