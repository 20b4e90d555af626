-- The highest use of a minute. '#peak' remembers it: "<minute>:<permits>".
local function note_peak(name, used)
  local this = name.minute .. ':'
  if used <= tonumber(string.match(name.peak or '', '^' .. this .. '(%d+)$') or 0) then return end
  local most = math.max(used, tonumber(redis.call('HGET', STATS, this .. 'p') or 0))
  redis.call('HSET', STATS, this .. 'p', most)
  name.peak = this .. most
  put(name, '#peak', name.peak)
end
