-- Remove the lease or the waiter of the token in ARGV. If ARGV asks for a tombstone, write it. If a release has
-- `hold`, the permits stay taken until `hold` ms after the grant.
-- `state`, `own` (the fence), `terms`: parts of the token's record, or nil. `ends`: the end of its lease, if any.
-- `live`: true if this lease is unexpired. Only then, the release is counted.
local function end_token(name, state, own, terms, ends, live)
  local token, _, _, how, tombstone, hold = unpack(ARGV)
  if state and state ~= 'x' then
    remove(name, token, state, terms, ends)
  end
  if live then
    count(name, 'r', PAIR + math.max(0, math.floor(name.now - own / 1000)))
  end
  if live and name.rate and (how == 'undo' or hold == '-1') then
    refund(name, own, math.max(1, tonumber(string.match(terms, '^%d+'))))
  end
  if tombstone == '1' then
    write_tombstone(name, token)
  end
  if (how or 'release') == 'release' and hold and hold ~= '0' then
    -- The token 'k…' now holds the permits, so that a late request of the old token can't release them.
    local until_then = math.ceil(math.min(own / 1000, name.now) + tonumber(hold))
    local record = 'k ' .. own .. ' ' .. string.format(name.format, until_then - name.now) .. ' ' .. terms
    if until_then > name.now then
      add_lease(name, 'k' .. token, until_then, tonumber(string.match(terms, '^%d+')), record)
    end
  end
end
