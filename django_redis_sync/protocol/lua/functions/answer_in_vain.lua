-- Count and answer a waiter that gave up: an operator paused the name, its share has its limit, or the time is over.
local function answer_in_vain(name, terms)
  local permits, limit = string.match(terms, '^(%d+) (%d+)')
  local bound, share = share_of(terms)
  local most = name.override or tonumber(limit)
  if share then
    local held, first = share_use(name, share)
    if not share_fits(held, tonumber(permits), bound) then
      return answer_share(name, share, bound, first, most)
    end
  end
  count(name, name.paused and 'n' or 't', 1)
  return answer_no(name, 'timeout ', waiting_of(name), most)
end
