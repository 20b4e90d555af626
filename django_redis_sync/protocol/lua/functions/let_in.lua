-- Grants to a newcomer, whose permits are `free` or who is a shadow, which is counted. `alone`: it may
-- have the name packed, when nobody else is there.
local function let_in(name, base, token, lease, permits, terms, wants, free, alone)
  if free and alone and name.card == 0 and lease ~= 'inf' and is_bare(name) then
    return pack_again(name, base, token, lease, permits, terms, wants)
  end
  if not free then count(name, 's', 1) end
  local fence, ms = grant(name, token, permits, lease, terms, nil, false)
  return 'ok ' .. fence .. ' ' .. ms .. (free and '' or name.paused and ' paused' or ' full')
end
