-- Write many keys at one instant, on a full server, too, as MULTI does otherwise: a command that fails stops no other.
--
-- WITH commands: replies_of_all
-- Returns the replies in order. Run twice: writes again.

-- Redis refuses a script's first write when it is full, and no write after it. So change nothing first. The flag
-- `allow-oom` does the same before every call; here it costs two commands only when the server is full.
local function change_nothing(key)
  if redis.call('EXISTS', key) == 1 then redis.call('RENAMENX', key, key) else redis.call('UNLINK', key) end
end

return replies_of_all(change_nothing)
