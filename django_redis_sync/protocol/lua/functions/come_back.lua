-- Return in how many ms a job at this rank should come back: a little before its turn, estimated from `mean`, the
-- mean hold in ms. If the last grant is long ago, return at least a quarter of the time since then.
local function come_back(name, rank, limit, mean)
  local ms = math.max((rank + 1) * mean / limit * 0.9, name.fence > 0 and (name.now - name.fence / 1000) / 4 or 0)
  if name.paused then
    ms = math.min(ms, pause_ends(name.paused) - name.now + 1)
  end
  return math.ceil(math.max(SOONEST, math.min(ms, LATEST)))
end
