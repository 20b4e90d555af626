-- Remove what has expired, and grant free permits to live waiters, which come before the job that visits.
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
  name.visitor = place -- from here on, a permit that is kept for this job counts as free
  if not name.places or string.match(name.places, '%S*$') == place then -- this job came for it
    name.places = ''
    put(name, '#places', '')
  end
end
