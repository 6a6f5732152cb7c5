-- Publish completions that another server had to forward, each once.
--
-- WITH types: wrong_type
-- KEYS done       stream  completions of all groups
-- KEYS forwarded  hash    the last entry that was published, by source
-- ARGV capacity   about how many are kept
-- ARGV source     which server and group has them
-- ARGV words...   four for each, in order: entry, job, channel, what is published
-- Returns how many had not been published. Run twice: 0.
local call = redis.call
local refused = wrong_type({stream = {done}, hash = {forwarded}})
if refused then return refused end
local last_ms, last_seq = string.match(call('HGET', forwarded, source) or '0-0', '(%d+)-(%d+)')
local count = 0
for place = 1, #words, 4 do
  local entry, job, channel, message = unpack(words, place, place + 3)
  local ms, seq = string.match(entry, '(%d+)-(%d+)')
  if tonumber(ms) > tonumber(last_ms) or (ms == last_ms and tonumber(seq) > tonumber(last_seq)) then
    call('XADD', done, 'MAXLEN', '~', capacity, '*', 'job', job, 'msg', message)
    call('PUBLISH', channel, message)
    call('HSET', forwarded, source, entry)
    count = count + 1
  end
end
return count
