-- Return the log of a name that has a rate, as the fields below. Read it once per script. The field '#log' is a packed text:
-- `total` and `first` (doubles), and the entries, oldest first. An entry is the time of its last grant (a double), and
-- its number of permits (I4). Times are in microseconds.
-- `period`: that of the rate. `text`: the packed text. `at`: position of the oldest entry within the period.
-- `total`: permits of the entries from there. `first`: time of the first grant of the newest entry. `moved`: true if the
-- clock was set back, and the field still has the former times. `changed`: true if `finish` has to store `text`.
-- LOG period text at total first moved changed
local function rate_log(name)
  if name.log then return name.log end
  local now, period = name.us, string.match(name.rate, '/(%d+)') * 1000
  local text = redis.call('HGET', INFO, '#log') or ''
  local at, total, first, moved = LOG_HEAD + 1, 0, 0, false
  if #text > LOG_HEAD then
    total, first = struct.unpack('<dd', text)
    local ahead = struct.unpack('<d', text, #text - LOG_ENTRY + 1) - now
    if ahead > 0 then -- the clock was set back: count as if no time has passed since the last grant
      local entries = {string.sub(text, 1, LOG_HEAD)}
      for place = at, #text, LOG_ENTRY do
        local last, permits = struct.unpack('<dI4', text, place)
        entries[#entries + 1] = struct.pack('<dI4', last - ahead, permits)
      end
      text, first, moved = table.concat(entries), first - ahead, true
    end
    for place = at, #text, LOG_ENTRY do
      local last, permits = struct.unpack('<dI4', text, place)
      if last + period > now then break end
      total, at = total - permits, place + LOG_ENTRY
    end
  end
  name.log = {period, text, at, total, first, moved, false}
  return name.log
end
