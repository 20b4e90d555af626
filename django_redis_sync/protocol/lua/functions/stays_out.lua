-- Whether a newcomer neither gets permits nor waits for them, when nobody waits yet.
local function stays_out(name, permits, limit, how, max_waiters)
  if permits > limit then return true end
  if how == 'shadow' or fits(name, permits, limit) then return false end
  return how == 'try' or tonumber(max_waiters or 1) <= 0
end
