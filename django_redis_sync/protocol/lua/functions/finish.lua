-- Store the changed fields. Extend the expiry of the keys if a lease or a deadline needs that.
local function finish(name)
  local puts, latest, expiry = name.puts, name.latest, name.expiry
  if name.extra ~= name.stored then
    put(name, '#extra', whole(name, name.extra))
  end
  if name.recount then -- something without an end was removed: find the latest end
    expiry, latest = 0, latest_of_all(name)
  end
  local later = (name.recount or puts[1] or latest > name.now) and latest + GRACE > expiry
  if later then
    expiry = latest + 2 * GRACE -- later than needed, so that most scripts need not change it
    put(name, '#expiry', whole(name, expiry))
  end
  if puts[1] and not tonumber(redis.pcall('HSET', INFO, unpack(puts))) then
    retry_write('HSET', INFO, unpack(puts))
  end
  if later then
    set_expiry(name, LEASES, expiry)
    set_expiry(name, INFO, expiry)
    for _, key in ipairs({QUEUE, WAITERS}) do -- leave a foreign value as it is
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
  elseif name.new_leases or name.new_queue or name.new_waiters then -- keys that this script created
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
  if name.visitor and not later then -- this script may have created them
    set_places_expiry(name, expiry)
  end
end
