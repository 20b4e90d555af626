-- release: give a lease back; also the undo of an acquire, and the give-up of a waiter.
-- KEYS leases never
-- ARGV token fence keep how bury hold mark
--   how: release (this fence only) | undo (whatever the token has) | giveup (a lease that was
--   granted meanwhile is kept and claimed; a waiter leaves) | share (a writer becomes a reader,
--   with the same lease); bury: 1 when an acquire of this token
--   went unanswered; hold: ms after the grant until which the permits stay taken, 0 for none
-- Returns ok [fence lease when giveup found a grant] | lost (not ours: nothing changed) | gone
local token, fence, keep, how, bury, hold, mark = unpack(ARGV)
local base, how = string.sub(LEASES, 1, -7), how or 'release' -- all keys of the name begin with base
local packed, us, last, expiry, ends, seen, peak, holder = short_state(base)
if packed then
  local held = holder == token and us < ends * 1000
  local mine = held and last == tonumber(fence)
  if mine and how == 'release' and (not bury or bury == '0' and hold == '0') then -- mostly
    give_back(us, keep, base, last, expiry, seen, peak)
    return 'ok'
  elseif held and how == 'giveup' then
    return 'ok ' .. string.format('%.0f', last) .. ' ' .. string.format('%.0f', ends - (us - us % 1000) / 1000)
  elseif not mine and (how == 'release' or how == 'share') then
    count(glance(us, keep), 'l', 1)
    return 'lost'
  elseif packed ~= '' then
    redis.call('DEL', NEVER)
    spill(packed)
  end
end
local name, record = open(token, keep, us)
if mark and mark ~= '-' then heed(name, mark) end
local state, nth, own, lease, terms = string.match(record or '', RECORD)
local ends = state and redis.call('ZSCORE', LEASES, token)
local live = tonumber(ends or 0) > name.now
if (how == 'release' or how == 'share') and not (live and own == fence) then
  count(name, 'l', 1)
  return 'lost'
end
if how == 'giveup' and live then
  claim(token)
  return 'ok ' .. own .. ' ' .. whole(name, tonumber(ends) - name.now)
end
if how == 'share' then
  share(name, token, state .. nth .. ' ' .. own .. ' ' .. lease, terms)
else
  if state and state ~= 'x' then remove(name, token, state, terms, ends) end
  local held_ms = live and math.max(0, math.floor(name.now - own / 1000))
  if live or how == 'giveup' then count(name, live and 'r' or 't', live and PAIR + held_ms or 1) end
  if bury == '1' then mark_dead(name, token) end
  if how == 'release' and hold and hold ~= '0' then
    keep_held(name, token, own, terms, tonumber(hold))
  end
end
if redis.call('ZCARD', QUEUE) > 0 then
  if name.card > 0 then sweep(name, nil) end -- with no leases, nothing of it can be over
  hand_over(name, nil)
end
finish(name)
return live and 'ok' or 'gone'
