-- Return the reply to an acquire of a name in the compact state. Return nil if the name has to be
-- expanded first; then this function has expanded it. `packs`: whether the new lease may be packed.
local function ask_compact(us, keep, base, packs, packed, fence, expiry, ends, seen, peak, holder, at)
  local token, lease, how, wants, terms, _, mark, max_waiters = unpack(ARGV)
  local name = compact_fields(us, keep)
  local live = ends > name.now
  if holder == token then -- the reply to its request was lost
    return live and 'ok ' .. whole(name, fence) .. ' ' .. whole(name, ends - name.now) or 'gone'
  elseif how == 'again' then
    return 'gone'
  end
  local permits, limit = string.match(terms, TERMS)
  permits, limit = tonumber(permits), tonumber(limit)
  if packs and not live and permits <= limit then
    return take_compact(us, keep, base, token, lease, permits, terms, fence, expiry, wants, peak, holder, false)
  elseif packed ~= '' then
    local most = load_compact(name, live, string.sub(packed, at), limit, mark)
    local out = rejects(name, permits, most, how, max_waiters) or live and string.sub(seen, 1, 1) ~= string.sub(wants, 1, 1)
    if out and live and seen == wants and name.us >= fence then
      return permits > most and 'large ' .. whole(name, most) or reject(name, 0, most)
    end
    -- With the memory full, a rejection may be stored, and an expired lease may be replaced.
    if out or (not live and holder ~= '') then redis.call('DEL', NEVER) end
    expand(packed)
  end
end
