-- Answer an acquire of a token that the name knows: a copy of its first request. Return nil and its terms if
-- it waits: this is its heartbeat.
local function answer_known(name, token, record)
  local state, _, fence, _, terms = string.match(record, RECORD)
  if state == 'x' then return 'dead' end
  if state ~= 'w' then
    local ends = tonumber(redis.call('ZSCORE', LEASES, token) or 0)
    if ends <= name.now then return 'gone' end
    claim(token) -- its wake-up message, or the reply to its first request, was lost
    return 'ok ' .. fence .. ' ' .. whole(name, ends - name.now)
  end
  local _, _, channel = string.match(terms, TERMS)
  if channel ~= '-' then
    heartbeat(name, channel)
  end
  if name.shared then
    repair_share(name, terms)
  end
  return nil, terms
end
