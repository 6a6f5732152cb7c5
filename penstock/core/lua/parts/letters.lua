-- Push dead letters: JSON objects, which `penstock dead` reads. A message of more than LARGE bytes is no part of the object:
-- it follows behind a line end, and `bytes` is its length. To encode it would hold the server for 2 to 7 ms a megabyte.
--
-- USES letters
-- GIVES push_letter

-- Always: `message`, `reason`, `attempts` (deliveries), `at` (now, ms since the epoch). If known: `error` (words), `queue`,
-- `source` (where clients push), `service` (an id), `id`, `xid`, `replyTo`, `first` and `last` (delivery, ms).
-- Return how many bytes the letter has.
local LARGE = 262144
local function push_letter(letter)
  local message, behind = letter.message, ''
  if message and #message > LARGE then letter.message, letter.bytes, behind = nil, #message, '\n' .. message end
  local text = cjson.encode(letter) .. behind
  redis.call('LPUSH', letters, text)
  return #text
end
