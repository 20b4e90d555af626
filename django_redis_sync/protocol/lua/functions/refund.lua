-- Take a grant that its caller never got out of the log of the rate (see rate_log). This is done only for the last
-- grant of the name: its entry is the newest for certain. Other grants stay, because a refund from a later entry
-- would let too many grants into a period.
local function refund(name, fence, permits)
  if tonumber(fence) ~= name.fence then return end
  local log = rate_log(name)
  local text, size = log.text, #log.text
  if size <= log.at then return end
  local last, newest = struct.unpack('<dI4', text, size - LOG_ENTRY + 1)
  if newest < permits then return end
  log.total = log.total - permits
  local rest = newest > permits and struct.pack('<dI4', last, newest - permits) or ''
  change_log(log, string.sub(text, log.at, size - LOG_ENTRY) .. rest)
end
