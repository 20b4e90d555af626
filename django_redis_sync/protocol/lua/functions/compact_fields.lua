-- Return the fields of a name that `count` and `tidy` read. While the name is compact, a script calls this function
-- instead of `open`.
local function compact_fields(us, keep, stats)
  return {us, (us - us % 1000) / 1000, false, false, '%.0f', keep, stats}
end
