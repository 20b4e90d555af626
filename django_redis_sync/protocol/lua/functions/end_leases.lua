-- Removes leases that are over.
local function end_leases(name, over)
  for i = 1, #over do
    local state, _, _, _, terms = string.match(redis.call('HGET', INFO, over[i]) or '', RECORD)
    remove(name, over[i], state, terms, name.at)
    if state ~= 'k' then count(name, 'c', 1) end -- k: its lease had been given back
  end
end
