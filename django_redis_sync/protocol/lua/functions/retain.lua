-- min_hold: keep the permits of a released lease taken until `ms` after its grant, under a token of their
-- own that no late copy of a request knows.
local function retain(name, token, fence, terms, ms)
  local ends = math.ceil(math.min(fence / 1000, name.now) + ms)
  if ends <= name.now then return end
  local record = 'k ' .. fence .. ' ' .. string.format(name.format, ends - name.now) .. ' ' .. terms
  add_lease(name, 'k' .. token, ends, tonumber(string.match(terms, '^%d+')), record)
end
