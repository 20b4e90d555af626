-- Return a rejection if a newcomer wants more permits than the limit, or if the name is in use as the other kind.
-- Otherwise store `wants`, the newcomer's kind and limit, in the field '#seen', and return nil.
-- If the name is in use with another limit, also store the time and the former '#seen' in '#clash', for operators.
local function mismatch(name, wants, permits, limit, waiting)
  if permits > limit then
    return 'large ' .. whole(name, limit)
  end
  if name.seen == wants then return nil end
  if name.seen and name.card + waiting > 0 then
    local kind = string.sub(name.seen, 1, 1)
    if kind ~= string.sub(wants, 1, 1) then return 'kind ' .. kind end
    name.clash = name.at .. ' ' .. name.seen
    put(name, '#clash', name.clash)
  end
  put(name, '#seen', wants)
  return nil
end
