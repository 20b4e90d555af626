-- Remove the dead ones among the first CHUNK parked waiters of a share, up to the first live one.
local function remove_dead_parked(name, terms, me)
  local _, share = share_of(terms or '')
  local members, tokens, lists = {}, {}, {}
  for _, member in ipairs(share and parked_of(share, CHUNK) or {}) do
    local t = string.match(member, '%S+$')
    local _, _, _, _, own = string.match(redis.call('HGET', INFO, t) or '', RECORD)
    local _, _, channel = string.match(own or '', TERMS)
    if t == me or channel and deadline_of(name, t, channel) > name.now then break end
    members[#members + 1], tokens[#tokens + 1], lists[#lists + 1] = member, t, wake_key(t)
  end
  if #members > 0 then
    redis.call('ZREM', PARKED, unpack(members))
    redis.call('ZREM', WAITERS, unpack(tokens))
    redis.call('HDEL', INFO, unpack(tokens))
    redis.call('DEL', unpack(lists))
  end
  return #members
end
