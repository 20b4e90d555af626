-- Return the number of ms until the rate of a name allows `permits` more permits; 0 if it allows them now.
-- If several waiters may come when the same entry of the log leaves the period, the second value is the rank of the
-- last of these permits among them, from 0. So their waiters can come one after the other.
local function rate_opens(name, permits)
  local log = rate_log(name)
  local rounds = math.floor((permits - 1) / name.most) -- more than a whole period's permits: one more period for each
  local missing, later = log.total + permits - (rounds + 1) * name.most, rounds * log.period / 1000
  if missing <= 0 then return later, 0 end
  for place = log.at, #log.text, LOG_ENTRY do
    local last, freed = struct.unpack('<dI4', log.text, place)
    if missing <= freed then
      return math.ceil((last + log.period - name.us) / 1000) + later, missing - 1
    end
    missing = missing - freed
  end
  return log.period / 1000 + later, 0
end
