-- The other keys of the name, which lie in the slot of those that a verb declares: all have one `base`.
-- KEYS info queue waiters wake
local function lay_keys(base)
  INFO, QUEUE, WAITERS, WAKE = base .. 'info', base .. 'queue', base .. 'waiters', base .. 'wake:' .. ARGV[1]
end
