-- Remove expired leases.
local function remove_expired(name, over)
  for i = 1, #over do
    local state, _, _, _, terms = string.match(redis.call('HGET', INFO, over[i]) or '', RECORD)
    remove(name, over[i], state, terms, name.at)
    if state ~= 'k' then -- k: its lease was released
      count(name, 'c', 1)
    end
  end
end
