-- Return true if the last free permit is kept for a job, and this job is not the caller. A permit is kept for a job
-- that got none in STARVED visits, although its turn was near. It is kept only around the time when the job is due, and
-- for at most TURN after the first caller that did not get it. The field '#places' is "<due> <since> <place>", or empty
-- if no permit is kept. <due>: when the job is due. <since>: when that first caller came, or 0. <place>: the job.
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
