-- Grants to `t`. In: t, ticket (of one that waited), handed (by a hand-over), lease, permits, many,
-- limit, channel, label. Out: given (the fence), ms (the lease).
-- The fence grows with every grant, across lost keys too as long as the clock does not go back.
-- A hand-over grants FIRST at most, and nobody gets "for ever" before it said that it is there.
fence = math.max(fence + 1, us)
local given, ms = whole(fence), tonumber(lease)
if handed or ms == math.huge then ms = math.min(ms, FIRST) end
if card == 0 then fresh[#fresh + 1] = LEASES end
call('ZADD', LEASES, whole(now + ms), t)
latest = math.max(latest, now + ms)
-- @include weight
card, extra = card + 1, extra + weight - 1
do
  local state, nth, own = handed and 'g' or 'h', '', given
-- @include written
end
put('#fence', given)
if ticket then call('ZREM', QUEUE, t) end
do
  local what, n = 'g', 1
  if ticket then what, n = 'w', PAIR + math.max(0, math.floor((us - ticket) / 1000)) end
-- @include counted
end
if ARGV[#ARGV] ~= '0' then -- the highest use of a minute; '#peak' remembers it, so that most need not look
  local used, this = many == 0 and 1 or card + extra, minute .. ':'
  local old = meta[8] or ''
  if old ~= this .. used and used > tonumber(string.match(old, '^' .. this .. '(%d+)$') or 0) then
    local peak = math.max(used, tonumber(call('HGET', STATS, this .. 'p') or 0))
    call('HSET', STATS, this .. 'p', peak)
    meta[8] = this .. peak
    put('#peak', meta[8])
  end
end
