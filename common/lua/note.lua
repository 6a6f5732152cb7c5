-- Count what came to a pending list by BLMOVE, as the next command of the same connection.
--
-- FLAGS allow-oom
-- WITH held
-- KEYS pending  list  what the caller has taken and not settled
-- Returns 1, or 0 where a key is of the wrong type, which the script that moves the messages reports. Run twice: the
-- second run finds all of them counted.
for kind, keys in pairs({list = {pending}, hash = {holds, missing, taken}}) do
  for _, key in pairs(keys) do
    local found = redis.call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then return 0 end
  end
end
note(pending, redis.call('LLEN', pending))
return 1
