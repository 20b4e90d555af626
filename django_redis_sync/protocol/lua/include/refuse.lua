-- Why a newcomer gets nothing.

-- '#seen' is the kind and the limit of the last caller. Another kind on a live name is refused
-- (returned); another limit is noted for the operator: '#clash' is when, and the one before.
local function disagrees(wants, live)
  if seen == wants then return nil end
  if seen and live then
    local kind = string.sub(seen, 1, 1)
    if kind ~= string.sub(wants, 1, 1) then return kind end
    put('#clash', whole(now) .. ' ' .. seen)
  end
  put('#seen', wants)
end

-- Mean milliseconds that permits were held in this minute and the last, or nothing.
local function mean_hold()
  local n, ms = 0, 0
  for _, pair in ipairs({call('HGET', STATS, minute .. ':r'), call('HGET', STATS, minute - 1 .. ':r')}) do
    n, ms = n + math.floor((pair or 0) / PAIR), ms + (pair or 0) % PAIR
  end
  return n > 0 and whole(ms / n) or nil
end
