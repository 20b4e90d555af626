-- What an operator said of the policy that this name is a child of, which the caller carries along:
-- "<paused> <limit>", 0 for neither. The name's own marks come first.
local function heed(name, mark)
  local paused, limit = string.match(mark, '^(%d+) (%d+)$')
  if paused ~= '0' then name.paused = name.paused or paused end
  if limit ~= '0' then name.override = name.override or tonumber(limit) end
end
