-- Return in how many ms a job at this rank comes back: a little before its turn, as long as permits are held
-- now; where that takes longer than it did, a quarter of the time since the last grant.
local function come_back(name, rank, limit, mean)
  local ms = math.max((rank + 1) * mean / limit * 0.9, name.fence > 0 and (name.now - name.fence / 1000) / 4 or 0)
  if name.paused then
    ms = math.min(ms, pause_ends(name.paused) - name.now + 1)
  end
  return math.ceil(math.max(SOONEST, math.min(ms, LATEST)))
end
