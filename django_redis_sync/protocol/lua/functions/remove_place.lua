-- Remove everything that is stored about the job `place`.
local function remove_place(base, place)
  local _, _, _, ticket, _, _, share = string.match(redis.call('HGET', INFO, place) or '', PLACE)
  redis.call('ZREM', base .. 'places', place)
  redis.call('ZREM', base .. 'due', place)
  if share and share ~= '' then
    redis.call('ZREM', base .. 'placed', string.sub(share, 2) .. ' ' .. ticket .. ' ' .. place)
  end
  redis.call('HDEL', INFO, place)
end
