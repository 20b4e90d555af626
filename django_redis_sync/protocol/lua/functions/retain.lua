-- Apply min_hold: keep the permits of a released lease taken until `ms` after its grant. They get a token of their own,
-- so that no late request can release them.
local function retain(name, token, fence, terms, ms)
  local ends = math.ceil(math.min(fence / 1000, name.now) + ms)
  if ends <= name.now then return end
  local record = 'k ' .. fence .. ' ' .. string.format(name.format, ends - name.now) .. ' ' .. terms
  add_lease(name, 'k' .. token, ends, tonumber(string.match(terms, '^%d+')), record)
end
