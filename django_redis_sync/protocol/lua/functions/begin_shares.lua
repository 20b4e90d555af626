-- If the caller's `terms` have a share, such as a tenant, mark the name as one that has shares.
local function begin_shares(name, terms)
  name.shared = share_of(terms) and '0'
  if name.shared then
    put(name, '#shares', '0')
  end
end
