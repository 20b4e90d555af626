-- Format a whole number that may be infinite. Numbers that can't be infinite are formatted in place: each
-- function call has a cost.
local function whole(name, n)
  return n < 2 ^ 53 and string.format(name.format, n) or 'inf'
end
