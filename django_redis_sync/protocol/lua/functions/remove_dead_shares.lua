-- Remove dead waiters of a name with shares from the queue. With each of them, remove dead parked waiters (outside the
-- queue) of its share. `me`: the token of the calling waiter, which is not removed, or nil. Return the number of
-- removed waiters.
local function remove_dead_shares(name, me)
  local removed = 0
  for _, t in ipairs(redis.call('ZRANGE', QUEUE, '0', CHUNK - 1)) do
    local state, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
    local _, _, channel = string.match(terms or '', TERMS)
    if t ~= me and (state ~= 'w' or deadline_of(name, t, channel) <= name.now) then
      local _, share = share_of(terms or '')
      local parked = share and redis.call('ZRANGEBYLEX', PARKED, '[' .. share .. ' ', '(' .. share .. '!', 'LIMIT', '0', CHUNK)
      removed = removed + 1 + remove_dead(name, PARKED, parked or {}, me)
      remove(name, t, state, terms, state ~= 'w' and redis.call('ZSCORE', LEASES, t))
    end
    if removed >= CHUNK then break end
  end
  return removed
end
