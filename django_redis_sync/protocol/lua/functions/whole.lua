-- Format a whole number that may be inf. Where it can't be inf, use string.format: a function call costs more.
local function whole(name, n)
  return n < 2 ^ 53 and string.format(name.format, n) or 'inf'
end
