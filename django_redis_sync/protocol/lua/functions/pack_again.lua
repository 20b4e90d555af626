-- Grants a name that lies open, and that nobody has or waits for, and packs it. Returns the fence.
local function pack_again(name, token, lease, permits, terms, wants)
  name.minute = name.minute or string.format('%d', (name.now - name.now % 60000) / 60000)
  local fence = take_alone(name, token, lease, permits, terms, name.fence, name.expiry, wants, name.peak or '', '', true)
  redis.call('DEL', INFO) -- last: what is packed counts
  name.puts, name.dropped = {}, false -- there is nothing more to store
  return fence
end
