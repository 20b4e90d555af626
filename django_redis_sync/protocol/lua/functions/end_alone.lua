-- What a release is told while the name is in the short state, nil when it has to lie open for that: then
-- it does. `ends`: of its own lease, false when that is none or over.
local function end_alone(name, packed, fence, expiry, seen, peak, ends)
  local how = ARGV[3]
  if (how == 'release' or how == 'share') and not (ends and fence == tonumber(ARGV[2])) then
    count(name, 'l', 1)
    return {'lost'}
  elseif how == 'release' and ARGV[4] == '0' and ARGV[5] == '0' then
    give_back(name, fence, expiry, seen, peak)
    return {'ok'}
  elseif how == 'giveup' and ends then
    return {'ok', whole(name, fence), whole(name, ends - name.now)}
  elseif packed ~= '' then
    redis.call('DEL', NEVER)
    spill(packed)
  end
end
