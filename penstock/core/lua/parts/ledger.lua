-- Read and write the ledger of a queue: by outbox what has come from there, as a text, `token sequence at`.
--
-- It has a key of its own beside the queue, which clients of busmq do not know, and moves with the queue.
-- USES ledger source
-- GIVES noted note KEPT_SECONDS
-- Its key lives for longer than the queue, which may expire or be closed while a reply is missing.
local KEPT_SECONDS = 604800

-- Return token and sequence as numbers, both 0 if nothing is known.
local function noted()
  local token, sequence = string.match(redis.call('HGET', ledger, source) or '', '^(%d+) (%d+) %d+$')
  return tonumber(token or 0), tonumber(sequence or 0)
end

local function note(token, sequence)
  redis.call('HSET', ledger, source, string.format('%.0f %.0f %s', token, sequence, redis.call('TIME')[1]))
  redis.call('EXPIRE', ledger, KEPT_SECONDS)
end
