-- If the caller's `terms` have a share, such as a tenant, note that the name has shares.
local function begin_shares(name, terms)
  name.shared = share_of(terms) and '0'
  if name.shared then
    put(name, '#shares', '0')
  end
end
