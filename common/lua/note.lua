-- Count the messages that BLMOVE has added to a pending list, as the next command of the same connection.
--
-- WITH held: note
-- KEYS pending  list  what the caller has taken and not settled
-- Returns how many messages the list holds, or -1 if a key is of the wrong type, which the script that moves the messages
-- reports. Run twice: the second run finds all of them counted.
local here, counted = redis.pcall('LLEN', pending), redis.pcall('HGET', holds, pending)
if here == 0 and not counted then return 0 end
if type(here) ~= 'number' or type(redis.pcall('HLEN', holds)) ~= 'number'
    or taken and type(redis.pcall('HLEN', taken)) ~= 'number' then return -1 end
-- A full server refuses a script's first write if it may use memory, and no write after it. So change nothing first.
if redis.call('EXISTS', holds) == 1 then redis.call('RENAMENX', holds, holds) else redis.call('UNLINK', holds) end
note(pending, here)
return here
