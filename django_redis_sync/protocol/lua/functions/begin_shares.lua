-- The first caller that gives a share: the name has shares from now on.
local function begin_shares(name, terms)
  name.shared = share_of(terms) and '0'
  if name.shared then
    put(name, '#shares', '0')
  end
end
