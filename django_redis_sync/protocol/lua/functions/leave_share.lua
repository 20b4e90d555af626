-- Update the share of `t`, which is being removed. `ends`: the end of its lease. Without `ends`, `t` is a waiter. If no
-- waiter of the share is then in the queue, the next parked waiter gets the position of `t` there, `ticket`.
local function leave_share(name, t, terms, ends, ticket)
  local _, share = share_of(terms or '')
  if not share then return end
  local held, first = share_use(name, share)
  if ends then
    held = math.max(0, held - weight(tonumber(string.match(terms, '^%d+'))))
  end
  if first == t then
    first = ''
  elseif not ends then
    local arrival = string.match(redis.call('HGET', INFO, t) or '', '^w (%d+)')
    redis.call('ZREM', PARKED, parked_as(share, arrival or 0, t))
  end
  if first == '' then
    first = call_up(name, share, held, ticket)
  end
  store_share(name, share, held, first)
end
