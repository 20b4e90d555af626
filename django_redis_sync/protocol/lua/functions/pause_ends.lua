-- Return the time at which an operator's pause ends, in server ms. It is inf for a pause without an end. `paused`:
-- "<since>", or "<since> <until>".
local function pause_ends(paused)
  return tonumber(string.match(paused, ' (%d+)$') or math.huge)
end
