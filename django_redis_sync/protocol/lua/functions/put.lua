-- Set a field of the hash INFO. `finish` writes the field to Redis.
local function put(name, field, value)
  local puts = name.puts
  local n = #puts
  puts[n + 1], puts[n + 2] = field, value
end
