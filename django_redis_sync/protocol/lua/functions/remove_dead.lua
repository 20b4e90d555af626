-- Remove the dead waiters among the first CHUNK of the queue: with a process, thousands can die. `me`: the token whose
-- heartbeat this is. Return how many were removed.
local function remove_dead(name, me)
  local heads = redis.call('ZRANGE', QUEUE, '0', CHUNK - 1)
  local records = redis.call('HMGET', INFO, unpack(heads))
  local dead, lists = {}, {}
  for i = 1, #heads do
    local t, state, _, _, _, terms = heads[i], string.match(records[i] or '', RECORD)
    local _, _, channel = string.match(terms or '', TERMS)
    if t ~= me and (state ~= 'w' or deadline_of(name, t, channel) <= name.now) then
      dead[#dead + 1] = t
      lists[#lists + 1] = wake_key(t)
    end
  end
  redis.call('ZREM', QUEUE, unpack(dead))
  redis.call('ZREM', WAITERS, unpack(dead))
  redis.call('HDEL', INFO, unpack(dead))
  redis.call('DEL', unpack(lists))
  return #dead
end
