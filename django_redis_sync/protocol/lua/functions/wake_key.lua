-- Return the key of the list with the wake-up message for `token`. WAKE is this key for the token of the caller.
local function wake_key(token)
  return string.sub(WAKE, 1, -1 - #ARGV[1]) .. token
end
