-- Reply to an acquire of a name in the compact state (see compact_state). If the compact state can't store the result,
-- expand the name and return nil. The caller then continues in the expanded state.
-- `packs`: true if the compact state may store the new lease. The other arguments come from compact_state.
local function ask_compact(us, keep, base, packs, packed, fence, expiry, ends, seen, peak, holder, at)
  local token, lease, how, wants, terms, _, overrides, max_waiters = unpack(ARGV)
  local name = compact_fields(us, keep, base .. 'stats')
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
    local held = live and tonumber(string.match(packed, '^%S+ %S+ %S+ (%d+)', at))
    name.card, name.extra = live and 1 or 0, live and (held == 0 and EXCLUSIVE or held) - 1 or 0
    if overrides and overrides ~= '-' then
      apply_override(name, overrides)
    end
    limit = name.override or limit
    local stays = how == 'try' or how == 'skip' or tonumber(max_waiters or 1) <= 0 -- true if the caller must not wait
    local out = permits > limit or how ~= 'shadow' and stays and not fits(name, permits, limit)
    out = out or live and string.sub(seen, 1, 1) ~= string.sub(wants, 1, 1)
    if out and live and seen == wants and name.us >= fence then
      return permits > limit and 'large ' .. whole(name, limit) or reject(name, 'full', 0, limit, how)
    end
    -- To reject a caller, or to replace an expired lease, write even if the memory is full (see retry_write).
    if out or (not live and holder ~= '') then redis.call('DEL', NEVER) end
    expand(packed)
  end
end
