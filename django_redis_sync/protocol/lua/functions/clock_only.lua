-- Return the fields of a name that `count` and `tidy` read, for a script that reads no name.
local function clock_only(keep, stats)
  local name, time = {}, redis.call('TIME')
  name.format, name.keep, name.stats = '%.0f', keep, stats
  name.now = time[1] * 1000 + math.floor(time[2] / 1000)
  name.minute = whole(name, math.floor(name.now / 60000))
  return name
end
