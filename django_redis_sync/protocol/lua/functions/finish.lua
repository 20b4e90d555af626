-- Store the changed fields. Move the expiry of the keys if something outlives it.
local function finish(name)
  local puts, latest, expiry = name.puts, name.latest, name.expiry
  if name.extra ~= name.stored then
    put(name, '#extra', whole(name, name.extra))
  end
  if name.recount then -- what kept the keys from expiring is gone: find the latest end now
    expiry, latest = 0, latest_of_all(name)
  end
  local later = (name.recount or puts[1] or latest > name.now) and latest + GRACE > expiry
  if later then
    expiry = latest + 2 * GRACE -- further than needed, so that most scripts leave it as it is
    put(name, '#expiry', whole(name, expiry))
  end
  if puts[1] and not tonumber(redis.pcall('HSET', INFO, unpack(puts))) then
    retry_write('HSET', INFO, unpack(puts))
  end
  if later then
    set_expiry(name, LEASES, expiry)
    set_expiry(name, INFO, expiry)
    for _, key in ipairs({QUEUE, WAITERS}) do -- a foreign value stays as it is
      if tonumber(redis.pcall('ZCARD', key)) then
        set_expiry(name, key, expiry)
      end
    end
    if name.places then
      set_places_expiry(name, expiry)
    end
    if name.shared then
      set_expiry(name, PARKED, expiry)
    end
  elseif name.new_leases or name.new_queue or name.new_waiters then -- the keys that were made here
    if name.new_leases then
      set_expiry(name, LEASES, expiry)
    end
    if name.new_queue then
      set_expiry(name, QUEUE, expiry)
      if name.shared then
        set_expiry(name, PARKED, expiry)
      end
    end
    if name.new_waiters then
      set_expiry(name, WAITERS, expiry)
    end
  end
  if name.visitor and not later then -- its keys may be made here
    set_places_expiry(name, expiry)
  end
end
