-- Return `n`, a whole number or inf, as text. If `n` can't be inf, call string.format instead, because it is faster.
local function whole(name, n)
  return n < 2 ^ 53 and string.format(name.format, n) or 'inf'
end
