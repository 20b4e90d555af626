-- Return the reply to a release of a name in the compact state, or expand the name and return nil.
local function end_compact(us, base, packed, how, last, expiry, ends, seen, peak, holder)
  local token, fence, keep, _, tombstone, hold = unpack(ARGV)
  local held = holder == token and us < ends * 1000
  local mine = held and last == tonumber(fence)
  if mine and how == 'release' and (not tombstone or tombstone == '0' and hold == '0') then -- the usual case
    release_compact(us, keep, base, last, expiry, seen, peak)
    return 'ok'
  elseif held and how == 'giveup' then
    return 'ok ' .. string.format('%.0f', last) .. ' ' .. string.format('%.0f', ends - (us - us % 1000) / 1000)
  elseif not mine and (how == 'release' or how == 'share') then
    return 'lost'
  elseif packed ~= '' then
    redis.call('DEL', NEVER)
    expand(packed)
  end
end
