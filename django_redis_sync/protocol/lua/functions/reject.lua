-- Return the reply to a rejected acquire: how many wait, the recent mean hold in ms (empty: unknown), the limit.
local function reject(name, waiting, limit)
  local busy = name.card + waiting > 0
  if not busy then name.puts = {} end -- a rejected call changes nothing
  if name.paused or busy then
    count(name, 'n', 1)
  end
  return answer_no(name, 'full ', waiting, limit)
end
