-- Return true if the last free permit is reserved for a job other than the caller.
-- A permit is reserved for a job that got none in STARVED deliveries, although it was near the head of the queue. It
-- is reserved from TURN before the job is due until TURN after. It is free earlier, TURN after it was first kept from
-- a caller.
-- The field '#places' is "<due> <since> <id>", or empty without a reservation:
-- - <due>: when the job is due
-- - <since>: when the reservation first kept the permit from a caller, or 0
-- - <id>: the ID of the job
local function keeps(name)
  local due, since, id = string.match(name.places, '^(%d+) (%d+) (%S+)$')
  due, since = tonumber(due), tonumber(since)
  if not due or id == name.visitor or math.abs(name.now - due) >= TURN then return false end
  if since == 0 then
    since = name.now
    name.places = string.format(name.format, due) .. ' ' .. name.at .. ' ' .. id
    put(name, '#places', name.places)
  end
  return math.abs(name.now - since) < TURN
end
