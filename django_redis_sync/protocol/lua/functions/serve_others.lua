-- Remove what has expired, and grant free permits to live waiters: they come before the job that visits.
local function serve_others(name, base, place, terms)
  if not name.shared then
    begin_shares(name, terms)
  end
  local waiting = redis.call('ZCARD', QUEUE)
  if waiting > 0 or name.card > 0 then
    sweep(name, nil)
  end
  sweep_places(name, base)
  if waiting > 0 then
    hand_off(name, nil)
  end
  name.visitor = place -- from here on, what is kept for it counts as free
  if not name.places or string.match(name.places, '%S*$') == place then -- it came
    name.places = ''
    put(name, '#places', '')
  end
end
