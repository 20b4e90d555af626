-- Return the member for the waiter `t` in the sorted set PARKED. All members have the same score, so Redis sorts them
-- as texts: by share, and then by arrival.
local function parked_as(share, arrival, t)
  return share .. ' ' .. string.format('%016.0f', arrival) .. ' ' .. t
end
