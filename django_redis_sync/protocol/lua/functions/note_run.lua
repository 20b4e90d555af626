-- Write the record of the job `id` (see run_of), which is kept until `expiry`, in server ms.
local function note_run(base, id, state, token, copies, expiry)
  redis.call('DEL', NEVER) -- allow it even if the memory is full (see retry_write)
  redis.call('HSET', base .. 'job:' .. id, 'run', state .. ' ' .. token .. ' ' .. copies)
  if expiry < math.huge then
    redis.call('PEXPIREAT', base .. 'job:' .. id, string.format('%.0f', expiry))
  else
    redis.call('PERSIST', base .. 'job:' .. id)
  end
end
