-- Return true if the last free permit is kept for a job other than the caller. A permit is kept for a job that got no
-- permit in STARVED visits, although its turn was near. It is kept from TURN before the job is due until TURN after. It
-- is free for others earlier, if TURN has passed since it was first withheld from a caller.
-- The field '#places' is "<due> <since> <place>", or empty if no permit has been kept:
-- - <due>: when the job is due
-- - <since>: when the permit was first withheld from a caller, or 0
-- - <place>: the ID of the job
local function keeps(name)
  local due, since, place = string.match(name.places, '^(%d+) (%d+) (%S+)$')
  due, since = tonumber(due), tonumber(since)
  if not due or place == name.visitor or math.abs(name.now - due) >= TURN then return false end
  if since == 0 then
    since = name.now
    name.places = string.format(name.format, due) .. ' ' .. name.at .. ' ' .. place
    put(name, '#places', name.places)
  end
  return math.abs(name.now - since) < TURN
end
