-- Return the reply to an acquire of a name in the compact state, or expand the name and return nil.
-- `packs`: true if the new lease may be stored in the compact state.
local function ask_compact(us, keep, base, packs, packed, fence, expiry, ends, seen, peak, holder, at)
  local token, lease, how, wants, terms, _, mark, max_waiters = unpack(ARGV)
  local name = compact_fields(us, keep)
  local live = ends > name.now
  if holder == token then -- the first reply was lost
    return live and 'ok ' .. whole(name, fence) .. ' ' .. whole(name, ends - name.now) or 'gone'
  elseif how == 'again' then
    return 'gone'
  end
  local permits, limit = string.match(terms, TERMS)
  permits, limit = tonumber(permits), tonumber(limit)
  if packs and not live and permits <= limit then
    return take_compact(us, keep, base, token, lease, permits, terms, fence, expiry, wants, peak, holder, false)
  elseif packed ~= '' then
    limit = load_compact(name, live, string.sub(packed, at), limit, mark)
    local out = rejects(name, permits, limit, how, max_waiters) or live and string.sub(seen, 1, 1) ~= string.sub(wants, 1, 1)
    if out and live and seen == wants and name.us >= fence then
      return permits > limit and 'large ' .. whole(name, limit) or reject(name, 0, limit)
    end
    -- If the memory is full, a rejection and the replacement of an expired lease are allowed.
    if out or (not live and holder ~= '') then redis.call('DEL', NEVER) end
    expand(packed)
  end
end
