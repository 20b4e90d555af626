-- Let the keys of jobs expire with the other keys of the name.
local function set_places_expiry(name, expiry)
  local base = string.sub(LEASES, 1, -7)
  set_expiry(name, base .. 'places', expiry)
  set_expiry(name, base .. 'due', expiry)
  if name.shared then
    set_expiry(name, base .. 'placed', expiry)
  end
end
