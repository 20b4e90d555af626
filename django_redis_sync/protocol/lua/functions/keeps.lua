-- Return true if the last free permit is kept for a job that came in vain STARVED times, and that is due within
-- TURN. From the first caller that it holds up, it is kept for TURN at most. '#places': "<due> <since> <place>",
-- since: when it began to hold up others, or 0; empty if nothing is kept.
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
