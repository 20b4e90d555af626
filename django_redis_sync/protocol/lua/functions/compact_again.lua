-- Grant the only lease of an expanded name without waiters, and store the name in the compact state. Return the reply.
local function compact_again(name, base, token, lease, permits, terms, wants)
  local reply = take_compact(name.us, name.keep, base, token, lease, permits, terms, name.fence, name.expiry, wants, name.peak or '', '', true)
  redis.call('DEL', INFO) -- last: if the script stops before, `open` expands the packed text
  name.puts, name.dropped = {}, false -- nothing is left for `finish`
  return reply
end
