-- Pause the name during the cool-down `text` (see cool_ends), unless an operator's pause ends later.
local function cool(name, text)
  local ends = cool_ends(name, text)
  name.cooled = tonumber(string.match(text, ' (%d+) ')) > name.now
  if ends and (not name.paused or pause_ends(name.paused) < ends) then
    name.paused = 'cool ' .. whole(name, ends)
  end
end
