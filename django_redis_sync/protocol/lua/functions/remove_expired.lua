-- Remove expired leases.
local function remove_expired(name, expired)
  for i = 1, #expired do
    local state, _, _, _, terms = string.match(redis.call('HGET', INFO, expired[i]) or '', RECORD)
    remove(name, expired[i], state, terms, name.at)
    if state ~= 'k' then -- k: retained by min_hold after a release
      count(name, 'c', 1)
    end
  end
end
