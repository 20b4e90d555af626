-- Add a grant of `permits` to the log of the rate (see rate_log). If the log may get more than SLOTS entries, add it to
-- the newest entry, unless that began more than a hundredth of the period ago. Its older grants then count too long,
-- by at most this time, and never too short.
local function spend(name, permits)
  local log, us = rate_log(name), name.us
  name.latest = math.max(name.latest, name.now + log.period / 1000) -- keep '#rate' as long as the log
  local text, size = log.text, #log.text
  local kept, before = size, 0
  if size > log.at then
    local many = name.most > SLOTS or size - log.at >= SLOTS * LOG_ENTRY
    if us - log.first <= (many and log.period / SLOTS or 0) then
      local _, newest = struct.unpack('<dI4', text, size - LOG_ENTRY + 1)
      kept, before = size - LOG_ENTRY, newest
    end
  end
  if before == 0 then log.first = us end
  log.total = log.total + permits
  change_log(log, string.sub(text, log.at, kept) .. struct.pack('<dI4', us, before + permits))
end
