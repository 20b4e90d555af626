-- Return true if a newcomer gets no permits and may not wait. The queue is empty.
local function rejects(name, permits, limit, how, max_waiters)
  if permits > limit then return true end
  if how == 'shadow' or fits(name, permits, limit) then return false end
  return how == 'try' or tonumber(max_waiters or 1) <= 0
end
