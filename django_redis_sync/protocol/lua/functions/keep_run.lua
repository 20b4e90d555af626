-- Note that the lease of `token` runs the job `id` until `ends`, in server ms.
-- `begins`: true if the run begins. If the job must not run now, change nothing for its lease, and return a text: "ended"
-- or "cleared" (see run_of), or "runs" if another delivery of the job runs.
local function keep_run(base, id, token, now, ends, begins)
  local state, owner, copies = run_of(base, id)
  if begins then
    if state == 'd' then return 'ended' end
    if state == 'c' then return 'cleared' end
    local busy = state == 'e'
    if state == 'r' then -- pcall: in the compact state, the only lease is that of the caller
      busy = (tonumber(redis.pcall('ZSCORE', LEASES, owner)) or 0) > now
    end
    if busy and owner ~= token then
      redis.call('DEL', NEVER)
      redis.call('HSET', base .. 'job:' .. id, 'run', state .. ' ' .. owner .. ' 1') -- the expiry stays
      return 'runs'
    end
  elseif owner ~= token then
    return nil
  end
  note_run(base, id, 'r', token, copies or '0', ends + 2 * GRACE)
end
