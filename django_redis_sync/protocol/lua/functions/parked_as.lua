-- Return the text of a waiter in the sorted set PARKED, which is ordered by share, and then by arrival.
local function parked_as(share, arrival, t)
  return share .. ' ' .. string.format('%016.0f', arrival) .. ' ' .. t
end
