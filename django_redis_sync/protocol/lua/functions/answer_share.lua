-- Count and answer a rejection by the limit of a share. The reply has the waiters of the share, and the lower
-- limit of `bound` (that of the share) and `limit` (that of the name).
local function answer_share(name, share, bound, first, limit)
  count(name, 'n', 1)
  if not name.paused then
    count(name, 'b', 1)
  end
  return answer_no(name, 'share ', waiting_in_share(share, first), math.min(limit, tonumber(bound)))
end
