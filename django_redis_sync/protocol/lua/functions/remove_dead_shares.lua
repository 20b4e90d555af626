-- Do what remove_dead does, for a name with shares: behind each dead waiter, dead ones of its share go too.
local function remove_dead_shares(name, me)
  local removed = 0
  for _, t in ipairs(redis.call('ZRANGE', QUEUE, '0', CHUNK - 1)) do
    local state, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
    local _, _, channel = string.match(terms or '', TERMS)
    if t ~= me and (state ~= 'w' or deadline_of(name, t, channel) <= name.now) then
      removed = removed + 1 + remove_dead_parked(name, terms, me)
      remove(name, t, state, terms, state ~= 'w' and redis.call('ZSCORE', LEASES, t))
    end
    if removed >= CHUNK then break end
  end
  return removed
end
