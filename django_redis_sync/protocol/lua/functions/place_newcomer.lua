-- Grant `many` permits to a newcomer, reject it, or queue it. Return the reply, or nil and its rank.
local function place_newcomer(name, base, many, most, waiting)
  if name.shared then
    return place_in_share(name, base, many, most, waiting)
  end
  local token, lease, how, wants, terms, _, mark, max_waiters, fair, compact = unpack(ARGV)
  local free = fits(name, many, most)
  if free and waiting > 0 then -- first come, first served, unless fair=0
    free = fair == '0' and may_overtake(name)
  end
  if free or how == 'shadow' then
    return admit(name, base, token, lease, many, terms, wants, free, waiting == 0 and compact ~= '0' and (not mark or mark == '-'))
  elseif how ~= 'try' and waiting < tonumber(max_waiters or math.huge) then
    return nil, enqueue(name, token, lease, terms, waiting)
  elseif name.more then
    return 'more'
  else
    return reject(name, waiting, most)
  end
end
