-- Move the first parked waiter (one outside the queue) of a share into the queue. Return the token of the moved
-- waiter. If the share has no parked waiter, or has too few permits left, return ''.
-- `held`: number of permits that the share holds. `ticket`: see enter_queue.
-- A release that hands off to a share runs this function twice: in leave_share, because the ended lease made room in
-- its share, and in take_share, because the waiter that got the permits has left the queue.
local function queue_next_of_share(name, share, held, ticket)
  for _ = 1, BOUND do
    local member = redis.call('ZRANGEBYLEX', PARKED, '[' .. share .. ' ', '(' .. share .. '!', 'LIMIT', '0', '1')[1]
    if not member then return '' end
    local t = string.match(member, '%S+$')
    local state, _, _, _, terms = string.match(redis.call('HGET', INFO, t) or '', RECORD)
    local bound = share_of(terms or '')
    if state == 'w' and bound then
      if not share_fits(held, tonumber(string.match(terms, '^%d+')), bound) then return '' end
      redis.call('ZREM', PARKED, member)
      enter_queue(name, t, ticket)
      return t
    end
    redis.call('ZREM', PARKED, member) -- the waiter's record was lost
  end
  return ''
end
