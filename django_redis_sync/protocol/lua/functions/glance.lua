-- The clock on the short way: of the fields of a name, those with which things are counted.
local function glance(keep)
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  local now = (us - us % 1000) / 1000
  local minute = string.format('%d', (now - now % 60000) / 60000)
  return {us, now, false, minute, '%.0f', keep}
end
