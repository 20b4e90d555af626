-- Remove everything that is stored about the job `id`.
local function remove_job(base, id)
  local _, _, _, ticket, _, _, share = string.match(redis.call('HGET', INFO, id) or '', JOB)
  redis.call('ZREM', base .. 'places', id)
  redis.call('ZREM', base .. 'due', id)
  if share and share ~= '' then
    redis.call('ZREM', base .. 'placed', string.sub(share, 2) .. ' ' .. ticket .. ' ' .. id)
  end
  redis.call('HDEL', INFO, id)
end
