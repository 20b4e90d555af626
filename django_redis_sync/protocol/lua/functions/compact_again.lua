-- Grant an expanded name without holders and waiters, and pack it. Return the reply.
local function compact_again(name, base, token, lease, permits, terms, wants)
  local reply = take_compact(name.us, name.keep, base, token, lease, permits, terms, name.fence, name.expiry, wants, name.peak or '', '', true)
  redis.call('DEL', INFO) -- last: what is packed counts
  name.puts, name.dropped = {}, false -- there is nothing more to store
  return reply
end
