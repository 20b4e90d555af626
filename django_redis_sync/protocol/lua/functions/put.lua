-- Have `finish` store a field of the name.
local function put(name, field, value)
  local puts = name.puts
  local n = #puts
  puts[n + 1], puts[n + 2] = field, value
end
