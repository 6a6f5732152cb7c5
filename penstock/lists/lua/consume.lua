-- Settle the messages that were handled, renew the consumer's lease, and return the oldest messages that it holds; take more
-- from the source if there are fewer than wanted. All or none.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH reading: several take saw largest_read
-- KEYS source     list   what publishers push to (newest at the head)
-- KEYS working    list   what the consumer has taken and not settled (oldest at the tail)
-- KEYS consumers  zset   consumers of the source, by the end of their lease (us since the epoch)
-- KEYS steps      hash   number of the last step of each consumer; `gone:<us>` since another one has adopted its messages
-- KEYS outs...    list   where the handler's results go
-- ARGV id         the consumer
-- ARGV joins      1 if the consumer may be new; one that has gone stays so
-- ARGV step       number of this settlement: one more than the last one, or equal to it to settle nothing, as a call does that
--                 is repeated after a lost reply. If the server has lost some, or what was settled, the consumer is treated
--                 as gone
-- ARGV settled    how many of the oldest messages were handled: they are removed
-- ARGV back       places among these, comma-separated: they go back to the source, as the next to be taken
-- ARGV lease      how long the consumer lives without another call (us)
-- ARGV batch      maximum number of messages to return; 0 only settles and renews
-- ARGV bytes      no more are returned once they have this many bytes together
-- ARGV waited     1 if a wait has just moved the only message in `working`: then those behind it are taken, too
-- ARGV counts     of each of `outs`, how many of `results` go there, comma-separated
-- ARGV results... what to push, oldest first
-- Returns the messages, or consumers whose lease has ended, to be adopted before more is taken, and the bytes of the largest
-- message read; false if the consumer has gone. Run twice with the same step: the second run returns the same again, or more.
local call = redis.call
local refused = wrong_type({list = {source, working}, zset = {consumers}, hash = {steps}}) or wrong_type({list = outs})
if refused then return refused end
local last = call('HGET', steps, id)
if not last and joins == '0' or last and (string.find(last, 'gone', 1, true) or tonumber(step) > last + 1) then
  return false
end
if tonumber(step) > tonumber(last or 0) and call('LLEN', working) < tonumber(settled) then return false end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
call('ZADD', consumers, string.format('%d', now + lease), id)
if not last then call('HSET', steps, id, 0) end
if tonumber(step) > tonumber(last or 0) then
  local many, place = {}, 0
  for count in string.gmatch(counts, '%d+') do many[#many + 1] = tonumber(count) end
  for number, out in ipairs(outs) do
    call('LPUSH', out, unpack(results, place + 1, place + many[number]))
    place = place + many[number]
  end
  local handled, failed = tonumber(settled) > 0 and call('RPOP', working, settled) or {}, {}
  for at in string.gmatch(back, '%d+') do failed[#failed + 1] = handled[tonumber(at)] end
  for at = #failed, 1, -1 do call('RPUSH', source, failed[at]) end
  call('HSET', steps, id, step)
end

batch, bytes = tonumber(batch), tonumber(bytes)
if batch == 0 then return {{}, {}, 0} end
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
return {found, ended, largest_read}
