-- Store the record of a waiter that is in the queue or parked. Its arrival is part of the record, because its ticket
-- in the queue is later. Return `rank`.
local function enqueue_in_share(name, token, lease, terms, arrival, rank)
  put(name, token, 'w ' .. string.format(name.format, arrival) .. ' ' .. lease .. ' ' .. terms)
  if name.asker ~= '-' then
    heartbeat(name, name.asker)
  end
  return rank
end
