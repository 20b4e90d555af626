-- The record of `t`, as RECORD reads it. In: t, state, nth, own (its fence), lease, permits, limit,
-- channel, label.
put(t, state .. nth .. ' ' .. own .. ' ' .. lease .. ' ' .. permits .. ' ' .. limit .. ' ' .. channel ..
  ' ' .. label)
