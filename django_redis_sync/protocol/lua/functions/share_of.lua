-- Return the limit (0: none) and the share from the terms of a record. Return nil if they have no share, for example
-- if the record was written before the name had shares.
local function share_of(terms)
  return string.match(terms, '^%d+ %d+ %S+ /(%d+)/(%S*) ')
end
