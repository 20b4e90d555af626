-- Store the fields that this script has changed. If a lease or a deadline would outlast the keys, extend their expiry.
local function finish(name)
  local puts, latest, expiry, log = name.puts, name.latest, name.expiry, name.log
  if name.extra ~= name.stored then
    put(name, '#extra', whole(name, name.extra))
  end
  if log and log.changed then
    put(name, '#log', log.text)
  end
  if name.recount then -- the latest time at which a lease, deadline, or override ends may be earlier now
    expiry, latest = 0, latest_of_all(name)
  end
  local later = (name.recount or puts[1] or latest > name.now) and latest + GRACE > expiry
  if later then
    expiry = latest + 2 * GRACE -- GRACE more than needed, so that the expiry seldom changes
    put(name, '#expiry', whole(name, expiry))
  end
  if puts[1] and not tonumber(redis.pcall('HSET', INFO, unpack(puts))) then
    retry_write('HSET', INFO, unpack(puts))
  end
  if later or name.new_leases or name.new_queue or name.new_waiters then
    extend(name, later, expiry)
  end
end
