-- What an ask is told while the name is in the short state, nil when it has to lie open for that: then
-- it does. `packs`: whether what it asks for may be packed.
local function ask_alone(us, keep, base, packs, packed, fence, expiry, ends, seen, peak, holder, at)
  local token, lease, how, wants, terms, _, mark, max_waiters = unpack(ARGV)
  local name = glance(us, keep)
  local live = ends > name.now
  if holder == token then -- the reply to its ask was lost
    return live and 'ok ' .. whole(name, fence) .. ' ' .. whole(name, ends - name.now) or 'gone'
  elseif how == 'again' then
    return 'gone'
  end
  local permits, limit = string.match(terms, TERMS)
  permits, limit = tonumber(permits), tonumber(limit)
  if packs and not live and permits <= limit then
    return take_alone(us, keep, base, token, lease, permits, terms, fence, expiry, wants, peak, holder, false)
  elseif packed ~= '' then
    local most = reckon_alone(name, live, string.sub(packed, at), limit, mark)
    local out = stays_out(name, permits, most, how, max_waiters) or live and string.sub(seen, 1, 1) ~= string.sub(wants, 1, 1)
    if out and live and seen == wants and name.us >= fence then
      return permits > most and 'large ' .. whole(name, most) or refuse(name, 0, most)
    end
    -- With the memory full, who stays out may be noted, and who gets what is over may have it.
    if out or (not live and holder ~= '') then redis.call('DEL', NEVER) end
    spill(packed)
  end
end
