-- Grant to a newcomer. Its permits are `free`, or it is in shadow mode and counted. `alone`: the name may be
-- packed if it has no other holder.
local function admit(name, base, token, lease, permits, terms, wants, free, alone)
  if free and alone and name.card == 0 and lease ~= 'inf' and may_compact(name) then
    return compact_again(name, base, token, lease, permits, terms, wants)
  end
  local fence, ms, used = grant(name, token, permits, lease, terms, nil, false, not free)
  local reply = 'ok ' .. fence .. ' ' .. ms
  if free then return name.card > 1 and reply .. ' ' .. used or reply end
  return reply .. ' ' .. used .. (name.paused and ' paused' or ' full')
end
