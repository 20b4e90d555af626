-- Set the names of the other keys. They begin with the `base` of the declared keys, so they have the same slot.
-- KEYS info queue parked waiters wake
local function set_key_names(base)
  INFO, QUEUE, PARKED, WAITERS, WAKE = base .. 'info', base .. 'queue', base .. 'parked', base .. 'waiters', base .. 'wake:' .. ARGV[1]
end
