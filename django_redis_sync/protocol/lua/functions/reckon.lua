-- The clock of a script that is on no name of its own: those fields of one that `tidy` reads.
local function reckon(keep, stats)
  local name, time = {}, redis.call('TIME')
  name.format, name.keep, name.stats = '%.0f', keep, stats
  name.now = time[1] * 1000 + math.floor(time[2] / 1000)
  name.minute = whole(name, math.floor(name.now / 60000))
  return name
end
