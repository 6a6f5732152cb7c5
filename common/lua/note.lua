-- Count what came to a pending list by BLMOVE, as the next command of the same connection.
--
-- FLAGS allow-oom
-- WITH held
-- KEYS pending  list  what the caller has taken and not settled
-- Returns 1, or 0 where a key is of the wrong type, which the script that moves the messages reports. Run twice: the
-- second run finds all of them counted.
local here, held = redis.pcall('LLEN', pending), redis.pcall('HLEN', holds)
if type(here) ~= 'number' or type(held) ~= 'number' or taken and type(redis.pcall('HLEN', taken)) ~= 'number' then
  return 0
end
note(pending, here)
return 1
