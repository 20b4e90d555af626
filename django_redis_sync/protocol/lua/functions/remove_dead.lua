-- Remove the dead waiters among `members` of `key`, which is QUEUE or PARKED. Use few commands, because thousands of
-- waiters can die with a process. In PARKED, stop at the first live waiter.
-- `me`: the token of the calling waiter, which is not removed, or nil. Return the number of removed waiters.
local function remove_dead(name, key, members, me)
  local dead, tokens, lists = {}, {}, {}
  for _, member in ipairs(members) do
    local t = string.match(member, '%S+$')
    local state, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
    local _, _, channel = string.match(terms or '', TERMS)
    local stale = not channel or key == QUEUE and state ~= 'w'
    if t ~= me and (stale or deadline_of(name, t, channel) <= name.now) then
      dead[#dead + 1], tokens[#tokens + 1], lists[#lists + 1] = member, t, wake_key(t)
    elseif key == PARKED then
      break
    end
  end
  if #dead > 0 then
    redis.call('ZREM', key, unpack(dead))
    redis.call('ZREM', WAITERS, unpack(tokens))
    redis.call('HDEL', INFO, unpack(tokens))
    redis.call('DEL', unpack(lists))
  end
  return #dead
end
