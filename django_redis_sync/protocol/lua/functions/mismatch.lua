-- Return the reply to a newcomer whose permits or kind don't match the name, else nil. '#seen' is the kind and the
-- limit of the last caller. While a name is in use, a newcomer of another kind is rejected. If a newcomer has another
-- limit, store the time and the former '#seen' in '#clash', for operators.
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
