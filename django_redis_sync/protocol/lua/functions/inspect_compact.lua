-- Return the reply of `inspect` for a name in the compact state.
local function inspect_compact(name, fence, ends, seen, holder, record, max_rows)
  local live = ends > name.now
  local used = live and weight(tonumber(string.match(record, '^%S+ %S+ %S+ (%d+)'))) or 0
  local row = live and max_rows > 0 and {holder, whole(name, ends), record} or {}
  return {whole(name, name.now), whole(name, fence), '', '', seen, '', whole(name, used), live and 1 or 0, 0, row, {}}
end
