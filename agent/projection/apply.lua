-- One conditional change: all of it happens, or nothing does.
--
-- KEYS[1..g]  guards: hashes that must hold what the caller expects
-- ARGV[1]     g, then for each guard its six fields in order; '' for an absent one
-- then steps  command, number of its keys (1 or 2), number of its arguments, the arguments;
--             their keys are the KEYS after the guards, in order
-- The step `DROP set key` with the argument `member` unlinks the key if the member is not in the set.
-- The step `RENAME source target` does nothing where there is no source: its last member may be gone.
-- Returns 1, or 0 where a guard does not hold.
local guards = tonumber(ARGV[1])
local at = 2
for g = 1, guards do
  local found = redis.call('HMGET', KEYS[g], 'ring', 'region', 'agent', 'log', 'lsn', 'batch')
  for f = 1, 6 do
    if (found[f] or '') ~= ARGV[at] then
      return 0
    end
    at = at + 1
  end
end
local key = guards + 1
local last = #ARGV
while at <= last do
  local command, keys, arguments = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local first = at + 3
  at = first + arguments
  if command == 'DROP' then
    if not redis.call('ZSCORE', KEYS[key], ARGV[first]) then
      redis.call('UNLINK', KEYS[key + 1])
    end
    key = key + 2
  elseif keys == '2' then
    if redis.call('EXISTS', KEYS[key]) == 1 then
      redis.call(command, KEYS[key], KEYS[key + 1])
    end
    key = key + 2
  else
    redis.call(command, KEYS[key], unpack(ARGV, first, at - 1))
    key = key + 1
  end
end
return 1
