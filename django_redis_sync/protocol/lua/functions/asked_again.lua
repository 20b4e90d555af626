-- What a token is told that the name knows: a waiter's heartbeat, or a copy of its first ask.
local function asked_again(name, token, record)
  local state, _, fence, _, terms = string.match(record, RECORD)
  if state == 'x' then return 'dead' end
  if state ~= 'w' then
    local ends = tonumber(redis.call('ZSCORE', LEASES, token) or 0)
    if ends <= name.now then return 'gone' end
    claim(token) -- its wake-up, or the reply to its first ask, was lost: this is as good
    return 'ok ' .. fence .. ' ' .. whole(name, ends - name.now)
  end
  local _, _, channel = string.match(terms, TERMS)
  if channel ~= '-' then
    beat(name, channel)
    name.asker = channel
  end
  sweep(name, token)
  local reply = hand_over(name, token)
  if not reply then
    local rank = redis.call('ZRANK', QUEUE, token)
    reply = rank and wait(name, token, rank, channel) or 'gone' -- its limit became too small for it
  end
  finish(name)
  return reply
end
