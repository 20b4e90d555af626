-- Return three values: the number of shares in use, the number of shares with waiters, and a flat list of the
-- `max_rows` shares that have the most permits and waiters. For each of these shares, the list has the share, its
-- number of permits, and its number of waiters.
-- `ended`: maps a share to the permits of its expired leases. These permits don't count.
-- The function reads only about 10,000 fields, so it may miss shares.
local function heaviest_shares(name, max_rows, ended)
  local cursor, waiting, shares, ranked = '0', 0, {}, {}
  for _ = 1, 10 do
    local page = redis.call('HSCAN', INFO, cursor, 'MATCH', '/*', 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      shares[#shares + 1] = string.sub(page[2][i], 2)
    end
    if cursor == '0' then break end
  end
  for _, share in ipairs(shares) do
    local held, first = share_use(name, share)
    held = math.max(0, held - (ended[share] or 0)) -- share_use returns 0 if its stored number is outdated
    local queued = waiting_in_share(share, first)
    if queued > 0 then waiting = waiting + 1 end
    if held + queued > 0 then
      -- Pad the numbers, so that the texts have the order of the numbers.
      ranked[#ranked + 1] = string.format('%012.0f %012.0f %012.0f ', held + queued, held, queued) .. share
    end
  end
  table.sort(ranked)
  local found = {}
  for i = #ranked, math.max(1, #ranked - max_rows + 1), -1 do
    local held, queued, share = string.match(ranked[i], '^%d+ (%d+) (%d+) (.*)$')
    found[#found + 1], found[#found + 2], found[#found + 3] = share, held, queued
  end
  return #ranked, waiting, found
end
