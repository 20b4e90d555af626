-- Count and answer a rejection of a share that has its limit (`bound`; `most`: the limit of all): how many of the
-- share wait, and the lower of both limits.
local function answer_share(name, share, bound, first, most)
  count(name, 'n', 1)
  if not name.paused then
    count(name, 'b', 1)
  end
  return answer_no(name, 'share ', waiting_in_share(share, first), math.min(most, tonumber(bound)))
end
