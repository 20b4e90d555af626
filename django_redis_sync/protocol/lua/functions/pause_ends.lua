-- Return the end of an operator's pause, in server ms. `paused`: "<since> <until>", or only "<since>" if the pause has
-- no end. In this case, return inf.
local function pause_ends(paused)
  return tonumber(string.match(paused, ' (%d+)$') or math.huge)
end
