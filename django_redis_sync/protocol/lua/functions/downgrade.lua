-- Turn a writer into a reader: its lease of the whole name becomes a lease of one permit.
local function downgrade(name, token, head, terms)
  local permits, limit_and_all = string.match(terms, '^(%d+)( .*)$')
  name.extra = name.extra - weight(tonumber(permits)) + 1
  put(name, token, head .. ' 1' .. limit_and_all)
end
