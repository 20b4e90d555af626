-- Return the limit (0: without one) and the share that are in the terms of a record. Return nil for a record
-- without a share, as those from before the name had shares.
local function share_of(terms)
  return string.match(terms, '^%d+ %d+ %S+ /(%d+)/(%S*) ')
end
