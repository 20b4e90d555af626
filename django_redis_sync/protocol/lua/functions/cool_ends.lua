-- Return the end of a cool-down in server ms, or nil if it has ended. `text`: the field '#cool', "<since> <until> <label>".
-- <label>: that of the caller that began it. If it begins in the future, the clock was set back, so it has ended.
local function cool_ends(name, text)
  local since, ends = string.match(text, '^(%d+) (%d+) ')
  since, ends = tonumber(since), tonumber(ends)
  return since <= name.now and ends > name.now and ends or nil
end
