-- If the clock was set back, store the log of the rate with its new times. Otherwise, its grants would not grow old.
local function keep_moved(name)
  local log = rate_log(name)
  if log.moved then
    change_log(log, string.sub(log.text, log.at))
    put(name, '#log', log.text) -- so that `finish` is called
  end
end
