-- Counts. In: what, n. Field "<minute>:<what>" of one hash; where milliseconds belong to the count,
-- both share the number: count * PAIR + ms. What is older than `keep` minutes, a verb's last argument
-- (0: don't count), is folded into "total:<what>" (and "total:<what>:ms").
-- pcall: with the memory full nothing can be counted, and a release has to go on.
if ARGV[#ARGV] ~= '0' and redis.pcall('HINCRBY', STATS, minute .. ':' .. what, whole(n)) == n then
  local keep = tonumber(ARGV[#ARGV])
  local last = tonumber(call('HGET', STATS, 'tidied') or minute) -- the first of its minute: tidy up
  if last < minute or call('HEXISTS', STATS, 'tidied') == 0 then
    call('HSET', STATS, 'tidied', minute)
    call('PEXPIREAT', STATS, whole(now + (keep + 60) * 60000))
    for old = math.max(last, minute - 2 * keep) - keep, minute - keep - 1 do
      for name in string.gmatch('gwrntcslp', '.') do
        local field = old .. ':' .. name
        local sum = tonumber(call('HGET', STATS, field) or 0)
        if sum > 0 then
          call('HDEL', STATS, field)
          if name == 'w' or name == 'r' then
            call('HINCRBY', STATS, 'total:' .. name .. ':ms', sum % PAIR)
            sum = math.floor(sum / PAIR)
          end
          if name ~= 'p' then call('HINCRBY', STATS, 'total:' .. name, sum) end
        end
      end
    end
  end
end
