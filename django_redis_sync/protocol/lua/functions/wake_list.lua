-- The key of the list that wakes a token, from that of the token which this script is about.
local function wake_list(token)
  return string.sub(WAKE, 1, -1 - #ARGV[1]) .. token
end
