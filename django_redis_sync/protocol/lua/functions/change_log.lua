-- Replace the entries of the log of a rate (see rate_log). `entries`: the packed entries. `finish` stores the log.
local function change_log(log, entries)
  log.text, log.at, log.changed = struct.pack('<dd', log.total, log.first) .. entries, LOG_HEAD + 1, true
end
