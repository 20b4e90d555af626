-- Apply the overrides of a policy to the name of one of its keys. An override of the name itself takes precedence.
-- `overrides`: "<paused> <limit>[/<rate>]". <paused> is a pause (see pause_ends), or 0 for none. <limit> is a limit, or 0 for
-- none. <rate>: "<permits>/<ms>".
local function apply_override(name, overrides)
  local paused, limit, rate = string.match(overrides, '^(.+) (%d+)/?(%S*)$')
  if paused ~= '0' and not name.paused then
    name.paused = pause_ends(paused) > name.now and paused
  end
  if limit ~= '0' then name.override = name.override or tonumber(limit) end
  if rate ~= '' and not string.find(name.rate or '', ' op', 1, true) then
    name.rate, name.most = rate .. ' policy', tonumber(string.match(rate, '^%d+'))
  end
end
