-- Grants a name that lies open, and that nobody has or waits for, and packs it. Returns the reply.
local function pack_again(name, base, token, lease, permits, terms, wants)
  local reply = take_alone(name.us, name.keep, base, token, lease, permits, terms, name.fence, name.expiry, wants, name.peak or '', '', true)
  redis.call('DEL', INFO) -- last: what is packed counts
  name.puts, name.dropped = {}, false -- there is nothing more to store
  return reply
end
