-- Return the text that stands for a waiter in PARKED. PARKED is in the order of the shares, then of arrival.
local function parked_as(share, arrival, t)
  return share .. ' ' .. string.format('%016.0f', arrival) .. ' ' .. t
end
