-- Count a rejected acquire, and return the reply.
local function reject(name, waiting, limit)
  local busy = name.card + waiting > 0
  if not busy then name.puts = {} end -- don't store an unused name
  if name.paused or busy then
    count(name, 'n', 1)
  end
  return answer_no(name, 'full ', waiting, limit)
end
