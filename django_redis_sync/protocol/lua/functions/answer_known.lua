-- Reply to a token that already has a record.
-- If the token has or had a lease, or has a tombstone, return the reply.
-- If the token belongs to a waiter, put off the deadline of its event loop, if any. Then return nil and the waiter's terms.
local function answer_known(name, token, record)
  local state, _, fence, _, terms = string.match(record, RECORD)
  if state == 'x' then return 'dead' end
  if state ~= 'w' then
    local ends = tonumber(redis.call('ZSCORE', LEASES, token) or 0)
    if ends <= name.now then return 'gone' end
    claim(token) -- either the wake-up message or the first reply was lost
    return 'ok ' .. fence .. ' ' .. whole(name, ends - name.now)
  end
  local _, _, channel = string.match(terms, TERMS)
  if channel ~= '-' then
    set_deadline(name, channel, name.now + ALIVE)
  end
  if name.shared then
    repair_share(name, terms)
  end
  return nil, terms
end
