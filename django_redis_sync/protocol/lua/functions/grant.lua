-- Grants to `t`. `ticket`: when it came, if it waited; `handed`: it has yet to hear of it. Returns the
-- fence and the lease in ms, as text.
local function grant(name, t, permits, lease, terms, ticket, handed)
  -- The fence grows with every grant, across lost keys too as long as the clock does not go back.
  name.fence = name.fence < name.us and name.us or name.fence + 1
  local fence, ms = string.format(name.format, name.fence), tonumber(lease)
  -- A winner may be dead: it gets FIRST at the most until it has said that it is there.
  if ms > FIRST and (handed or lease == 'inf') then ms = FIRST end
  if ticket then redis.call('ZREM', QUEUE, t) end -- first: a full memory denies none that frees
  add_lease(name, t, name.now + ms, permits, (handed and 'g ' or 'h ') .. fence .. ' ' .. lease .. ' ' .. terms)
  put(name, '#fence', fence)
  if ticket then
    count(name, 'w', PAIR + math.max(0, math.floor((name.us - ticket) / 1000)))
  else
    count(name, 'g', 1)
  end
  if name.keep ~= '0' then
    local used = permits == 0 and 1 or name.card + name.extra
    if name.peak ~= name.minute .. ':' .. used then
      note_peak(name, used)
    end
  end
  return fence, string.format(name.format, ms)
end
