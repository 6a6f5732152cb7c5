-- Push dead letters: JSON objects, which `penstock dead` reads.
--
-- USES letters
-- GIVES push_letter

-- Always: `message`, `reason`, `attempts` (deliveries), `at` (now, ms since the epoch). If known: `error` (words), `queue`,
-- `source` (where clients push), `service` (an id), `id`, `xid`, `replyTo`, `first` and `last` (delivery, ms).
local function push_letter(letter) redis.call('LPUSH', letters, cjson.encode(letter)) end
