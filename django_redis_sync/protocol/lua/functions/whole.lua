-- A whole number that may be infinite, as text. One that can't be is formatted where it stands: every
-- function that is called costs something.
local function whole(name, n)
  return n < 2 ^ 53 and string.format(name.format, n) or 'inf'
end
