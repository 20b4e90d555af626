-- Return why a newcomer's permits, kind or limit don't match the name: large, kind, or nil. '#seen' is the
-- kind and the limit of the last caller. Another kind on a name in use is rejected; another limit is noted
-- for the operator: '#clash' holds when, and the limit before.
local function mismatch(name, wants, permits, limit, waiting)
  if permits > limit then
    return 'large ' .. whole(name, limit)
  end
  if name.seen == wants then return nil end
  if name.seen and name.card + waiting > 0 then
    local kind = string.sub(name.seen, 1, 1)
    if kind ~= string.sub(wants, 1, 1) then return 'kind ' .. kind end
    put(name, '#clash', name.at .. ' ' .. name.seen)
  end
  put(name, '#seen', wants)
  return nil
end
