-- Add `n` to the counter of `what` in this minute: field "<minute>:<what>" of one hash. A count with
-- milliseconds shares its number with them: count * PAIR + ms. Do nothing if `keep` (minutes of history) is '0'.
local function count(name, what, n)
  if name.keep == '0' then return end
  name.minute = name.minute or string.format(name.format, (name.now - name.now % 60000) / 60000)
  -- pcall: with the memory full nothing can be counted, and a release has to go on.
  local by = n == 1 and '1' or string.format('%d', n)
  if n >= PAIR and #by < 13 then by = string.format('%.0f', n) end -- see `open`
  if redis.pcall('HINCRBY', name.stats, name.minute .. ':' .. what, by) == n then
    tidy(name)
  end
end
