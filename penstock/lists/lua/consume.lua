-- Settle the messages that were handled, renew the consumer's lease, and return the oldest messages that it holds; take more
-- from the source if there are fewer than wanted. All or none.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH reading: several take saw largest_read
-- WITH letters: push_letter
-- WITH failures: failures_of set_failures
-- KEYS source     list   what publishers push to (newest at the head)
-- KEYS working    list   what the consumer has taken and not settled (oldest at the tail)
-- KEYS consumers  zset   consumers of the source, by the end of their lease (us since the epoch)
-- KEYS steps      hash   number of the last step of each consumer, and `idle` behind it while it has nothing in hand, only what
--                        it cannot settle, `each` while it settles each message; `gone:<us>` since others have its messages
-- KEYS letters?   list   dead letters, JSON
-- KEYS outs...    list   where the handler's results go
-- ARGV id         the consumer
-- ARGV joins      1 if the consumer may be new; one that has gone stays so
-- ARGV step       number of this settlement: one more than the last one, or equal to it to settle nothing, as a call does that
--                 is repeated after a lost reply. If the server has lost some, or what was settled, the consumer is treated
--                 as gone
-- ARGV settled    how many of the oldest messages were handled: they are removed
-- ARGV back       places among these, comma-separated: they go back to the source, as the next to be taken
-- ARGV kept       how many of these, the last ones, go back to `working` instead, in order
-- ARGV ends       JSON, of each of `back`: words if it failed, 1 if its consumers died, 0 if it was cancelled, which is no failure
-- ARGV limit      failed deliveries after which a message goes to `letters` instead; 0 for never
-- ARGV again      places of messages that were handled after they had failed, comma-separated
-- ARGV lease      how long the consumer lives without another call (us)
-- ARGV batch      maximum number of messages to return; 0 only settles and renews
-- ARGV bytes      no more are returned once they have this many bytes together
-- ARGV waited     1 if a wait has just moved the only message in `working`: then those behind it are taken, too
-- ARGV each       1 if the consumer settles each message before the next: if it dies, it has died of the oldest
-- ARGV idle       1 if the consumer has nothing in hand, but cannot settle: if it dies, no message has killed it
-- ARGV counts     of each of `outs`, how many of `results` go there, comma-separated
-- ARGV results... what to push, oldest first
-- Returns the messages, or consumers whose lease has ended, to be adopted before more is taken, the bytes of the largest
-- message read, and how often each of the messages has failed, if any of the list has; false if the consumer has gone. Run
-- twice with the same step: the second run returns the same again, or more.
local call = redis.call
local refused = wrong_type({list = {source, working, letters}, zset = {consumers}, hash = {steps, failures}})
  or wrong_type({list = outs})
if refused then return refused end
local state = call('HGET', steps, id)
if not state and joins == '0' or state and string.find(state, 'gone', 1, true) then return false end
step = tonumber(step)
local last = tonumber(string.match(state or '0', '%d+'))
if state and step > last + 1 then return false end
if step > last and call('LLEN', working) < tonumber(settled) then return false end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
limit, ends = tonumber(limit), back ~= '' and cjson.decode(ends)

-- Count a failed delivery; return whether it was the last one, and the message is a dead letter.
local function buried(message, ending)
  if ending == 0 then return false end
  local died = ending == 1
  local count = failures_of(message) + (died and 0 or 1)
  if limit == 0 or count < limit then
    set_failures(message, count)
    return false
  end
  local why, words = died and 'poison' or 'failed', died and 'a consumer died with it in hand, or one without a limit failed' or ending
  local at = math.floor(now / 1000)
  push_letter({message = message, reason = why, error = words, source = source, attempts = count, at = at})
  set_failures(message, 0)
  return true
end

call('ZADD', consumers, string.format('%d', now + lease), id)
local how = idle == '1' and ' idle' or each == '1' and ' each' or ''
local was = string.match(state or '?', '^%d+(.*)')
if how ~= was and (was ~= ' idle' or idle == '1') then
  call('HSET', steps, id, string.format('%d%s', last, how))
end
if step > last then
  local many, place = {}, 0
  for count in string.gmatch(counts, '%d+') do many[#many + 1] = tonumber(count) end
  for number, out in ipairs(outs) do
    call('LPUSH', out, unpack(results, place + 1, place + many[number]))
    place = place + many[number]
  end
  local handled, returned = tonumber(settled) > 0 and call('RPOP', working, settled) or {}, {}
  for at in string.gmatch(again, '%d+') do set_failures(handled[tonumber(at)], 0) end
  for at in string.gmatch(back, '%d+') do
    local which, ending = tonumber(at), table.remove(ends, 1)
    if not buried(handled[which], ending) then returned[#returned + 1] = which end
  end
  for at = #returned, 1, -1 do
    local into = returned[at] > settled - kept and working or source
    call('RPUSH', into, handled[returned[at]])
  end
  call('HSET', steps, id, string.format('%d%s', step, how))
end

batch, bytes = tonumber(batch), tonumber(bytes)
if batch == 0 then return {{}, {}, 0, {}} end
local here, found = call('LLEN', working), {}
local count = several(working, 0, math.min(here, batch), bytes)
while count > 0 do
  local messages = call('LRANGE', working, -#found - count, -#found - 1)
  saw(messages)
  for place = #messages, 1, -1 do found[#found + 1] = messages[place] end
  count = several(working, #found, math.min(here, batch) - #found, bytes)
end
local ended = {}
if here == 0 then ended = call('ZRANGEBYSCORE', consumers, '-inf', string.format('(%d', now), 'LIMIT', 0, 100) end
if #ended == 0 and (here == 0 or here == 1 and waited == '1') then
  take(source, working, found, math.min(batch - #found, call('LLEN', source)), bytes)
end
local times = {}
if #found > 0 and call('EXISTS', failures) == 1 then
  for place, message in ipairs(found) do times[place] = failures_of(message) end
end
return {found, ended, largest_read, times}
