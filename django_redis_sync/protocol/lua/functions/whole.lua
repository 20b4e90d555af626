-- Format `n`, a whole number or inf. Where `n` is never inf, call string.format instead, because it is cheaper.
local function whole(name, n)
  return n < 2 ^ 53 and string.format(name.format, n) or 'inf'
end
