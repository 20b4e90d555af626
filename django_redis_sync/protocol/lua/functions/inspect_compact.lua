-- Return the reply of `inspect` for a name with at most one lease and no waiters.
local function inspect_compact(name, fence, ends, seen, holder, record, most)
  local live = ends > name.now
  local used = live and weight(tonumber(string.match(record, '^%S+ %S+ %S+ (%d+)'))) or 0
  local row = live and most > 0 and {holder, whole(name, ends), record} or {}
  return {whole(name, name.now), whole(name, fence), '', '', seen, '', whole(name, used), live and 1 or 0, 0, row, {}}
end
