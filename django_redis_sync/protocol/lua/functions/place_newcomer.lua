-- Grant permits to a newcomer, reject it, or append it to the queue. Return the reply, or nil and its rank.
local function place_newcomer(name, base, permits, limit, waiting)
  if name.shared then
    return place_in_share(name, base, permits, limit, waiting)
  end
  local token, lease, how, wants, terms, _, mark, max_waiters, fair, compact = unpack(ARGV)
  local free = fits(name, permits, limit)
  if free and waiting > 0 then -- waiters come first, unless fair=0
    free = fair == '0' and may_overtake(name)
  end
  if free or how == 'shadow' then
    return admit(name, base, token, lease, permits, terms, wants, free, waiting == 0 and compact ~= '0' and (not mark or mark == '-'))
  elseif how ~= 'try' and waiting < tonumber(max_waiters or math.huge) then
    return nil, enqueue(name, token, lease, terms, waiting)
  elseif name.more then
    return 'more'
  else
    return reject(name, waiting, limit)
  end
end
