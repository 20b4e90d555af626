-- A newcomer: a grant, a refusal or the last place of the queue. In: how, wants, waiting, and what
-- `granted` takes. Out: reply, unless it waits.
-- '#seen' is the kind and the limit of the last caller. Another kind on a live name is refused;
-- another limit is noted for the operator: '#clash' is when, and the one before.
local clash = seen and seen ~= wants and card + waiting > 0
if many > most then
  reply = {'large', whole(most)}
elseif clash and string.sub(seen, 1, 1) ~= ARGV[5] then
  reply = {'kind', string.sub(seen, 1, 1)}
else
  if clash then put('#clash', at .. ' ' .. seen) end
  if seen ~= wants then put('#seen', wants) end
  local head = ARGV[8] == '0' and call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
  local barge = head and math.abs(now - head / 1000) < BEAT
-- @include fits
  local free = fit and (waiting == 0 or barge)
  if free or how == 'shadow' then
    if not free then
      local what, n = 's', 1
-- @include counted
    end
-- @include granted
    reply = {'ok', given, whole(ms), not free and (paused and 'paused' or 'full') or nil}
  elseif how == 'try' or waiting >= tonumber(ARGV[7]) then
    if card + waiting == 0 then puts = {} end
    if paused or card + waiting > 0 then
      local what, n = 'n', 1
-- @include counted
    end
    local n, held = 0, 0 -- how often, and how many ms, permits were held in this minute and the last
    for old = minute - 1, minute do
      local sum = call('HGET', STATS, old .. ':r') or 0
      n, held = n + math.floor(sum / PAIR), held + sum % PAIR
    end
    reply = {'no', paused and 'paused' or 'full', waiting, n > 0 and whole(held / n) or '', whole(most)}
  else
    local last = waiting > 0 and call('ZREVRANGE', QUEUE, '0', '0', 'WITHSCORES')[2]
    call('ZADD', QUEUE, whole(math.max(us, (last or 0) + 1)), token)
    if waiting == 0 then fresh[#fresh + 1] = QUEUE end
    local state, nth, own = 'w', '', '0'
-- @include written
  end
end
