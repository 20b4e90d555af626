-- Grant a lease to a newcomer. `free`: its permits are free; otherwise shadow mode grants and counts it. `alone`: the
-- name may become compact if it has no other holder.
local function admit(name, base, token, lease, permits, terms, wants, free, alone)
  if free and alone and name.card == 0 and lease ~= 'inf' and may_compact(name) then
    return compact_again(name, base, token, lease, permits, terms, wants)
  end
  local fence, ms, used = grant(name, token, permits, lease, terms, nil, false, not free)
  local reply = 'ok ' .. fence .. ' ' .. ms
  if free then return name.card > 1 and reply .. ' ' .. used or reply end
  return reply .. ' ' .. used .. (name.paused and ' paused' or ' full')
end
