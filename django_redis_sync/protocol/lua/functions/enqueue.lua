-- Store the record of a waiter, which is in the queue or parked. `arrival`: when it came, for a name with shares; else
-- '0', because then its ticket in the queue says that.
local function enqueue(name, token, lease, terms, arrival)
  put(name, token, 'w ' .. arrival .. ' ' .. lease .. ' ' .. terms)
  if name.asker ~= '-' then
    set_deadline(name, name.asker, name.now + ALIVE)
  end
end
