-- Set the names of the keys that a script uses but does not declare. They begin with `base`, as the declared keys do,
-- so all keys of a name are in one slot.
-- KEYS info queue parked waiters wake
local function set_key_names(base)
  INFO, QUEUE, PARKED, WAITERS, WAKE = base .. 'info', base .. 'queue', base .. 'parked', base .. 'waiters', base .. 'wake:' .. ARGV[1]
end
