-- Remove and count what a token has. Then write its tombstone and retain its permits, if the caller wants that.
local function end_token(name, state, own, terms, ends, live)
  local token, _, _, how, tombstone, hold = unpack(ARGV)
  if state and state ~= 'x' then
    remove(name, token, state, terms, ends)
  end
  local held_ms = live and math.max(0, math.floor(name.now - own / 1000))
  if live then
    count(name, 'r', PAIR + held_ms)
  end
  if tombstone == '1' then
    write_tombstone(name, token)
  end
  if (how or 'release') == 'release' and hold and hold ~= '0' then
    retain(name, token, own, terms, tonumber(hold))
  end
end
