-- Apply the override of a policy to the name of one of its keys. The caller sends `mark`, which is "<paused> <limit>".
-- A part is 0 if it is not overridden. pause_ends describes the format of <paused>. An override of the name itself
-- comes first.
local function apply_override(name, mark)
  local paused, limit = string.match(mark, '^(.+) (%d+)$')
  if paused ~= '0' and not name.paused then
    name.paused = pause_ends(paused) > name.now and paused
  end
  if limit ~= '0' then name.override = name.override or tonumber(limit) end
end
