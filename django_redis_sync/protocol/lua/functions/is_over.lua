-- Return true if the share of the first waiter is full. The share may have got permits since the waiter was called up.
local function is_over(name, terms)
  local bound, share = share_of(terms)
  return share and not share_fits(share_use(name, share), tonumber(string.match(terms, '^%d+')), bound)
end
