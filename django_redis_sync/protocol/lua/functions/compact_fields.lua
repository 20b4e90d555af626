-- Return a short form of the table that `open` returns. It has only the fields that `count` and `tidy` need. Scripts
-- call this function instead of `open` while the name is compact (see compact_state).
local function compact_fields(us, keep, stats)
  return {us, (us - us % 1000) / 1000, false, false, '%.0f', keep, stats}
end
