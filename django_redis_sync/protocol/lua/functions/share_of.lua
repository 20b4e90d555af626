-- Return two values from the terms of a holder or a waiter: the limit of its share ('0' for none), and the share.
-- Return nil if the terms have no share, for example because the caller came before the first share of the name.
local function share_of(terms)
  return string.match(terms, '^%d+ %d+ %S+ /(%d+)/(%S*) ')
end
