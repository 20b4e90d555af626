-- What an ask is told while the name is in the short state, nil when it has to lie open for that: then
-- it does. `many`: permits; the other arguments of the verb are looked at where they are needed.
local function ask_alone(name, packed, fence, expiry, ends, seen, peak, holder, record, terms, wants, many)
  local live, how, mark = ends > name.now, ARGV[6], ARGV[11]
  if holder == ARGV[1] then -- the reply to its ask was lost
    return live and {'ok', whole(name, fence), whole(name, ends - name.now)} or {'gone'}
  elseif how == 'again' then
    return {'gone'}
  elseif not live and ARGV[13] == '1' and mark == '-' and ARGV[2] ~= 'inf' and many <= tonumber(ARGV[4]) then
    return {'ok', take_alone(name, ARGV[1], ARGV[2], ARGV[3], terms, fence, expiry, wants, peak, record, false), ARGV[2]}
  elseif packed ~= '' then
    local most = reckon_alone(name, live, record, ARGV[4], mark)
    local out = stays_out(name, many, most, how, ARGV[7]) or live and string.sub(seen, 1, 1) ~= ARGV[5]
    if out and live and seen == wants and name.us >= fence then
      return many > most and {'large', whole(name, most)} or refuse(name, 0, most)
    end
    -- With the memory full, who stays out may be noted, and who gets what is over may have it.
    if out or (not live and holder ~= '') then redis.call('DEL', NEVER) end
    spill(packed)
  end
end
