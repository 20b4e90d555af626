-- Return the member of the sorted set PARKED for the waiter `t`. All members have the same score. So they
-- are in the order of their texts, that is, by share and then by arrival.
local function parked_as(share, arrival, t)
  return share .. ' ' .. string.format('%016.0f', arrival) .. ' ' .. t
end
