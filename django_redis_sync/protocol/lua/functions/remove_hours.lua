-- Remove the fields of hours before `first`.
local function remove_hours(first)
  local all = redis.call('HGETALL', SKETCH)
  for i = 1, #all, 2 do
    local hour = string.match(all[i], '^(%d+):')
    if hour and tonumber(hour) < first then redis.call('HDEL', SKETCH, all[i]) end
  end
end
