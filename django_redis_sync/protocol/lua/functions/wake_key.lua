-- Return the key of the list that wakes a token, from WAKE, which ends with this script's token.
local function wake_key(token)
  return string.sub(WAKE, 1, -1 - #ARGV[1]) .. token
end
