-- Grant a lease to the token `t`. `ticket`: the time when the waiter first asked, or nil if `t` did not wait.
-- `handed`: true for a handoff (a grant to a waiter that is not the caller), which the new holder has to claim.
-- `shadow`: true if the limit would reject the caller, and only shadow mode grants the lease.
-- Return three values: the fence as text, the lease duration in ms as text, and the number of permits in use.
local function grant(name, t, permits, lease, terms, ticket, handed, shadow)
  -- The fence is a time. So it grows even if the keys were lost, unless the clock was set back.
  name.fence = name.fence < name.us and name.us or name.fence + 1
  local fence, ms = string.format(name.format, name.fence), tonumber(lease)
  -- The new holder may be dead. So the lease lasts at most FIRST until the holder answers.
  if ms > FIRST and (handed or lease == 'inf') then ms = FIRST end
  if ticket then redis.call('ZREM', QUEUE, t) end -- the first write, because Redis allows it even if the memory is full
  add_lease(name, t, name.now + ms, permits, (handed and 'g ' or 'h ') .. fence .. ' ' .. lease .. ' ' .. terms)
  put(name, '#fence', fence)
  if name.rate then
    spend(name, math.max(1, permits))
  end
  if ticket then
    count(name, 'w', PAIR + math.max(0, math.floor((name.us - ticket) / 1000)))
  else
    count(name, shadow and 's' or 'g', 1)
  end
  local used = permits == 0 and 1 or name.card + name.extra
  if name.keep ~= '0' and name.peak ~= name.minute .. ':' .. used then
    local peak = highest_use(name.stats, name.minute, name.peak or '', used)
    if peak ~= name.peak then
      redis.call('HSET', name.stats, name.minute .. ':p', string.match(peak, '%d+$'))
      name.peak = peak
      put(name, '#peak', peak)
    end
  end
  return fence, string.format(name.format, ms), used
end
