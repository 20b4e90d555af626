-- What is in use of a name with one lease at the most, for a newcomer. Returns the limit.
local function reckon_alone(name, live, record, limit, mark)
  local permits = live and tonumber(string.match(record, '^%S+ %S+ %S+ (%d+)'))
  name.card, name.extra = live and 1 or 0, live and weight(permits) - 1 or 0
  if mark and mark ~= '-' then heed(name, mark) end
  return name.override or limit
end
