-- Store the record of a new waiter. `arrival`: if the name has shares, the waiter's time of arrival in microseconds.
-- For other names, '0': there, the waiter's ticket is its time of arrival.
local function enqueue(name, token, lease, terms, arrival)
  put(name, token, 'w ' .. arrival .. ' ' .. lease .. ' ' .. terms)
  if name.asker ~= '-' then
    set_deadline(name, name.asker, name.now + ALIVE)
  end
end
