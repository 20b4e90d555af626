-- Add `n` to the counter of the event `what` in this minute. The counter is the hash field "<minute>:<what>".
-- For an event with a duration, `n` is PAIR + ms. The counter is then (number of events) * PAIR + (sum of ms).
-- If `keep` (minutes of history) is '0', do nothing.
local function count(name, what, n)
  if name.keep == '0' then return end
  name.minute = name.minute or string.format(name.format, (name.now - name.now % 60000) / 60000)
  local by = n == 1 and '1' or string.format('%d', n)
  if n >= PAIR and #by < 13 then by = string.format('%.0f', n) end -- see `open`
  -- pcall: if the memory is full, the count is lost, but the script continues.
  if redis.pcall('HINCRBY', name.stats, name.minute .. ':' .. what, by) == n then
    tidy(name)
  end
end
