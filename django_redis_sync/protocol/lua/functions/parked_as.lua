-- Return the member of PARKED: the waiters of a share are together there, in order of arrival.
local function parked_as(share, arrival, t)
  return share .. ' ' .. string.format('%016.0f', arrival) .. ' ' .. t
end
