-- Return a flat list for the reply of `inspect`: each token, its score, its deadline if `deadlines` is given, and its
-- record. `list`: tokens and scores, alternately. `deadlines`: the key of the deadlines, or nil.
local function rows(list, deadlines)
  local out = {}
  for i = 1, #list, 2 do
    out[#out + 1] = list[i]
    out[#out + 1] = list[i + 1]
    if deadlines then out[#out + 1] = redis.call('ZSCORE', deadlines, list[i]) or '0' end
    out[#out + 1] = redis.call('HGET', INFO, list[i]) or ''
  end
  return out
end
