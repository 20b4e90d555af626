-- Counters: field "<minute>:<what>" of one hash, each count one HINCRBY. Where milliseconds belong to
-- the count, both share the number: count * PAIR + ms. What is older than KEEP minutes is folded
-- into "total:<what>" (and "total:<what>:ms"). KEEP is the last argument of a verb; 0: don't count.
local STATS, KEEP = KEYS[6], tonumber(ARGV[#ARGV])
local minute = math.floor(now / 60000)
local peak = tonumber(string.match(meta[8] or '', '^' .. minute .. ' (%d+)$') or 0)

local function tidy()
  local last = tonumber(call('HGET', STATS, 'tidied') or minute)
  if last == minute and call('HEXISTS', STATS, 'tidied') == 1 then return end
  call('HSET', STATS, 'tidied', minute)
  call('PEXPIREAT', STATS, whole(now + (KEEP + 60) * 60000))
  for old = math.max(last, minute - 2 * KEEP) - KEEP, minute - KEEP - 1 do
    for what in string.gmatch('gwrntcslp', '.') do
      local field = old .. ':' .. what
      local n = tonumber(call('HGET', STATS, field) or 0)
      if n > 0 then
        call('HDEL', STATS, field)
        if what == 'w' or what == 'r' then
          call('HINCRBY', STATS, 'total:' .. what .. ':ms', n % PAIR)
          n = math.floor(n / PAIR)
        end
        if what ~= 'p' then call('HINCRBY', STATS, 'total:' .. what, n) end
      end
    end
  end
end

local function count(what, n)
  if KEEP == 0 then return end
  -- pcall: with the memory full nothing can be counted, and a release has to go on.
  if redis.pcall('HINCRBY', STATS, minute .. ':' .. what, n) == n then tidy() end
end

-- The highest use of a minute; '#peak' remembers it, so that most grants need not look.
local function peaked(used)
  if KEEP == 0 or used <= peak then return end
  local field = minute .. ':p'
  peak = math.max(used, tonumber(call('HGET', STATS, field) or 0))
  call('HSET', STATS, field, peak)
  put('#peak', minute .. ' ' .. peak)
end

-- Mean milliseconds that permits were held in this minute and the last, or nothing.
local function mean_hold()
  local n, ms = 0, 0
  for _, pair in ipairs({call('HGET', STATS, minute .. ':r'), call('HGET', STATS, minute - 1 .. ':r')}) do
    n, ms = n + math.floor((pair or 0) / PAIR), ms + (pair or 0) % PAIR
  end
  return n > 0 and whole(ms / n) or nil
end
