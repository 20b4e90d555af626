-- Return the key of the wake-up list of a token. WAKE is this key for the token of the script's caller.
local function wake_key(token)
  return string.sub(WAKE, 1, -1 - #ARGV[1]) .. token
end
