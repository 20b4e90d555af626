-- If the terms of the caller have a share, store that the name has shares.
local function begin_shares(name, terms)
  name.shared = share_of(terms) and '0'
  if name.shared then
    put(name, '#shares', '0')
  end
end
