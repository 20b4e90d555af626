-- Counters: field "<minute>:<what>" of one hash, each count one HINCRBY. Where milliseconds belong to
-- the count, both share the number: count * PAIR + ms. What is older than KEEP minutes is folded
-- into "total:<what>" (and "total:<what>:ms"). KEEP is the last argument of a verb; 0: don't count.
local STATS, KEEP = KEYS[6], tonumber(ARGV[#ARGV])
local minute = math.floor(now / 60000)
local this = whole(minute) .. ':'

local function count(what, n)
  if KEEP == 0 then return end
  -- pcall: with the memory full nothing can be counted, and a release has to go on.
  if redis.pcall('HINCRBY', STATS, this .. what, whole(n)) ~= n then return end
  local last = tonumber(call('HGET', STATS, 'tidied') or minute) -- the first of its minute: tidy up
  if last == minute and call('HEXISTS', STATS, 'tidied') == 1 then return end
  call('HSET', STATS, 'tidied', minute)
  call('PEXPIREAT', STATS, whole(now + (KEEP + 60) * 60000))
  for old = math.max(last, minute - 2 * KEEP) - KEEP, minute - KEEP - 1 do
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

-- The highest use of a minute; '#peak' remembers it, so that most grants need not look.
local function peaked(used)
  local peak = tonumber(string.match(meta[8] or '', '^' .. this .. '(%d+)$') or 0)
  if KEEP == 0 or used <= peak then return end
  local field = this .. 'p'
  peak = math.max(used, tonumber(call('HGET', STATS, field) or 0))
  call('HSET', STATS, field, peak)
  put('#peak', this .. peak)
end
