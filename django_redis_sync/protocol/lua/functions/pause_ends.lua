-- When an operator's pause ends by itself, server ms. `paused`: "<since>", or "<since> <until>".
local function pause_ends(paused)
  return tonumber(string.match(paused, ' (%d+)$') or math.huge)
end
