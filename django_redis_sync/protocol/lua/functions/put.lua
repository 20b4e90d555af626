-- Set a field of INFO, which `finish` stores.
local function put(name, field, value)
  local puts = name.puts
  local n = #puts
  puts[n + 1], puts[n + 2] = field, value
end
