-- Once a minute: folds counts older than `keep` minutes into "total:<what>" (and "total:<what>:ms").
local function tidy(name)
  local minute, keep = (name.now - name.now % 60000) / 60000, tonumber(name.keep)
  local last = redis.call('HGET', name.stats, 'tidied')
  if last and tonumber(last) >= minute then return end
  redis.call('HSET', name.stats, 'tidied', minute)
  redis.call('PEXPIREAT', name.stats, whole(name, name.now + (keep + 2) * 60000))
  for old = math.max(tonumber(last or minute), minute - 2 * keep) - keep, minute - keep - 1 do
    for what in string.gmatch('gwrntcslp', '.') do
      local field = old .. ':' .. what
      local sum = tonumber(redis.call('HGET', name.stats, field) or 0)
      if sum > 0 then
        redis.call('HDEL', name.stats, field)
        if what == 'w' or what == 'r' then
          redis.call('HINCRBY', name.stats, 'total:' .. what .. ':ms', sum % PAIR)
          sum = math.floor(sum / PAIR)
        end
        if what ~= 'p' then redis.call('HINCRBY', name.stats, 'total:' .. what, sum) end
      end
    end
  end
end
