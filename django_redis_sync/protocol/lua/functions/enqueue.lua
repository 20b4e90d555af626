-- Store the record of a waiter that is in the queue or parked. `arrival`: for a name with shares, the time when the
-- waiter came. For other names, it is '0', because the ticket of the waiter is the time when it came.
local function enqueue(name, token, lease, terms, arrival)
  put(name, token, 'w ' .. arrival .. ' ' .. lease .. ' ' .. terms)
  if name.asker ~= '-' then
    set_deadline(name, name.asker, name.now + ALIVE)
  end
end
