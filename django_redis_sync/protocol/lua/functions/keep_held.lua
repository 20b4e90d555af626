-- min_hold: the permits of a lease that was given back stay taken until so many ms after its grant,
-- under a token of its own, that no late copy knows.
local function keep_held(name, token, fence, terms, ms)
  local ends = math.ceil(math.min(fence / 1000, name.now) + ms)
  if ends <= name.now then return end
  local record = 'k ' .. fence .. ' ' .. string.format(name.format, ends - name.now) .. ' ' .. terms
  add_lease(name, 'k' .. token, ends, tonumber(string.match(terms, '^%d+')), record)
end
