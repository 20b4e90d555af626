-- Once a minute, add old counters to those of longer periods (see fold_old). The counter of a minute is old after FINE
-- minutes, and moves to its quarter of an hour. After `keep` minutes, all counters move to the totals.
local function tidy(name)
  local minute, keep = (name.now - name.now % 60000) / 60000, tonumber(name.keep)
  local last = redis.call('HGET', name.stats, 'tidied')
  last = tonumber(last or minute - 1)
  if last >= minute then return end
  redis.call('HSET', name.stats, 'tidied', minute)
  redis.call('PEXPIREAT', name.stats, whole(name, name.now + (keep + 2) * 60000))
  local fine, fields = math.min(keep, FINE), {}
  if minute - last > 2 then -- more than one minute was missed, so check all fields
    local all = redis.call('HGETALL', name.stats)
    for i = 1, #all, 2 do
      fields[#fields + 1] = all[i]
    end
  else
    for old = last - fine, minute - fine - 1 do
      for what in string.gmatch(EVENTS, '.') do
        fields[#fields + 1] = old .. ':' .. what
      end
    end
    for old = last - keep, minute - keep - 1 do
      for what in string.gmatch(old % QUARTER == 0 and EVENTS or '', '.') do
        fields[#fields + 1] = old .. 'q:' .. what
        if what == 'w' or what == 'r' then fields[#fields + 1] = old .. 'q:' .. what .. ':ms' end
      end
    end
  end
  for _, field in ipairs(fields) do
    fold_old(name, field, minute, fine, keep)
  end
end
