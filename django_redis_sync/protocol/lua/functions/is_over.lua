-- Return true if the share of the head may not have its permits now: its use grew since it was called up.
local function is_over(name, terms)
  local bound, share = share_of(terms)
  return share and not share_fits(share_use(name, share), tonumber(string.match(terms, '^%d+')), bound)
end
