-- Return the member of PARKED for a waiter. Members are in the order of their shares, then of arrival.
local function parked_as(share, arrival, t)
  return share .. ' ' .. string.format('%016.0f', arrival) .. ' ' .. t
end
