-- If the caller gives a share, mark the name as one with shares.
local function begin_shares(name, terms)
  name.shared = share_of(terms) and '0'
  if name.shared then
    put(name, '#shares', '0')
  end
end
