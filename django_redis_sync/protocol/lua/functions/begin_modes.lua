-- Take over the rate and the shares of a caller, if it gives any.
local function begin_modes(name, wants, terms)
  begin_rate(name, wants)
  if not name.shared then
    begin_shares(name, terms)
  end
end
