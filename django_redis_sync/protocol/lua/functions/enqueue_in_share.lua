-- Store a waiter that has its place, with its arrival: a turn in the queue begins later. Return `rank`.
local function enqueue_in_share(name, token, lease, terms, arrival, rank)
  put(name, token, 'w ' .. string.format(name.format, arrival) .. ' ' .. lease .. ' ' .. terms)
  if name.asker ~= '-' then
    heartbeat(name, name.asker)
  end
  return rank
end
