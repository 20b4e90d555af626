-- Return true if the last free permit is kept for another job. That job got no permit STARVED times although its turn
-- was near, and it is due within TURN. The permit is kept for at most TURN after the first caller found it kept.
-- '#places' is empty if no permit is kept. Else it is "<due> <since> <place>", where <since> is the time of that first
-- caller, or 0.
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
