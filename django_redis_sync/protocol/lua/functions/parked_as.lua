-- Return the member of PARKED for a waiter. The order of members is by share, then by arrival.
local function parked_as(share, arrival, t)
  return share .. ' ' .. string.format('%016.0f', arrival) .. ' ' .. t
end
