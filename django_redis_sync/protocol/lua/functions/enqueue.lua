-- Store the record of a waiter that is in the queue or parked. `arrival`: the time when the waiter came, if the name
-- has shares. Else it is '0', because the waiter's ticket in the queue is that time.
local function enqueue(name, token, lease, terms, arrival)
  put(name, token, 'w ' .. arrival .. ' ' .. lease .. ' ' .. terms)
  if name.asker ~= '-' then
    set_deadline(name, name.asker, name.now + ALIVE)
  end
end
