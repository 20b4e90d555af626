-- Return when an operator's pause ends, in server ms, or inf. `paused`: "<since>", or "<since> <until>".
local function pause_ends(paused)
  return tonumber(string.match(paused, ' (%d+)$') or math.huge)
end
