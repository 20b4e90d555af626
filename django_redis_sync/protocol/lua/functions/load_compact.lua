-- Set the permits in use of a name in the compact state, and apply the override. Return the limit in force.
local function load_compact(name, live, record, limit, mark)
  local permits = live and tonumber(string.match(record, '^%S+ %S+ %S+ (%d+)'))
  name.card, name.extra = live and 1 or 0, live and (permits == 0 and EXCLUSIVE or permits) - 1 or 0
  if mark and mark ~= '-' then
    apply_override(name, mark)
  end
  return name.override or limit
end
