-- Apply the overrides of a policy to the name of one of its keys. `mark`: "<paused> <limit>", as the caller sends it. A
-- part that is not overridden is 0. For the format of <paused>, see pause_ends. Overrides of the name itself take
-- precedence.
local function apply_override(name, mark)
  local paused, limit = string.match(mark, '^(.+) (%d+)$')
  if paused ~= '0' and not name.paused then
    name.paused = pause_ends(paused) > name.now and paused
  end
  if limit ~= '0' then name.override = name.override or tonumber(limit) end
end
