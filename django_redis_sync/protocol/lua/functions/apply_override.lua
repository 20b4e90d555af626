-- What an operator said of the policy that this name is a child of, which the caller carries along:
-- "<paused> <limit>", 0 for neither; paused: as pause_ends takes it. The name's own marks come first.
local function apply_override(name, mark)
  local paused, limit = string.match(mark, '^(.+) (%d+)$')
  if paused ~= '0' and not name.paused then
    name.paused = pause_ends(paused) > name.now and paused
  end
  if limit ~= '0' then name.override = name.override or tonumber(limit) end
end
