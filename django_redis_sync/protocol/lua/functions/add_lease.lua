-- Store a lease of the token `t`, and the record of `t`. `ends`: the end of the lease in server ms. `permits`: its
-- number of permits (0: the whole name).
local function add_lease(name, t, ends, permits, record)
  if name.card == 0 then name.new_leases = true end
  redis.call('ZADD', LEASES, string.format(name.format, ends), t)
  if ends > name.latest then name.latest = ends end
  name.card, name.extra = name.card + 1, name.extra + weight(permits) - 1
  put(name, t, record)
  if name.shared then
    take_share(name, t, permits, record)
  end
end
