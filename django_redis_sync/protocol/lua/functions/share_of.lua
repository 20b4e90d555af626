-- Return two values from the terms of a record: the limit of the share ('0' for none), and the share. Return nil if
-- the terms have no share, for example because the record is older than the first share of the name.
local function share_of(terms)
  return string.match(terms, '^%d+ %d+ %S+ /(%d+)/(%S*) ')
end
