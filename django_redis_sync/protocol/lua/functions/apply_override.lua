-- Apply the override of the policy that this name is a key of: "<paused> <limit>", 0 for none; paused: see
-- pause_ends. The caller sends it. Overrides of the name itself win.
local function apply_override(name, mark)
  local paused, limit = string.match(mark, '^(.+) (%d+)$')
  if paused ~= '0' and not name.paused then
    name.paused = pause_ends(paused) > name.now and paused
  end
  if limit ~= '0' then name.override = name.override or tonumber(limit) end
end
