-- Take over the rate of a caller, "<permits>/<ms>", the third word of `wants`. If callers give different rates, that of the
-- last one applies. It also applies to callers that give none, for at least one period after the last caller that gave it.
-- The field '#rate' is the rate, and the time of such a request in server ms, or 'op' if an operator set the rate.
-- If an operator set the rate of the policy, `name.rate` is that rate and 'policy'. The field then keeps the rate of the
-- callers, which applies again as soon as the policy has no rate.
local function begin_rate(name, wants)
  local rate = string.match(wants, ' (%d+/%d+)$')
  local former, period, since = string.match(name.rate or '', '^(%d+/(%d+)) (%S+)$')
  if since == 'policy' and rate and name.seen ~= wants then
    put(name, '#rate', rate .. ' ' .. name.at)
  end
  if since == 'op' or since == 'policy' then return end
  local age = former and math.abs(name.now - since) / period -- abs, because the clock may have been set back
  if rate and (rate ~= former or age > 0.5) then
    name.rate, name.log, name.most = rate .. ' ' .. name.at, false, tonumber(string.match(rate, '^%d+'))
    put(name, '#rate', name.rate)
  elseif former and not rate and age > 1.5 then
    name.rate, name.most = false, EXCLUSIVE
    redis.call('HDEL', INFO, '#rate', '#log')
  end
end
