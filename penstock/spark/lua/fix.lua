-- Fix a micro-batch: move the oldest messages of a list to a segment, unless the segment exists.
--
-- WITH types: wrong_type
-- WITH moving: move
-- KEYS source   list   what publishers push to (newest at the head)
-- KEYS segment  list   the messages of the micro-batch (oldest at the tail)
-- KEYS state    hash   `taken`, the number of the newest segment, and `done`, that of the newest one that is finished
-- ARGV number   the number of the segment
-- ARGV batch    maximum number of messages to move; empty for all
-- ARGV bytes    move no more once they have this many bytes together; empty for no limit
-- Returns how many messages are in the segment, and how many of them this run moved: 0 and 0 if none wait; false if the
-- segment was taken before, and is gone. Run twice: the second run moves none.
local call = redis.call
local refused = wrong_type({list = {source, segment}, hash = {state}})
if refused then return refused end
local here, waiting = call('LLEN', segment), call('LLEN', source)
if here > 0 then return {here, 0} end
local taken = call('HGET', state, 'taken')
if taken and tonumber(taken) >= tonumber(number) then return false end
if waiting == 0 or batch == '0' then return {0, 0} end

-- A full server refuses this write, before anything is moved.
call('HSET', state, 'taken', number)
call('HSETNX', state, 'done', string.format('%.0f', number - 1))
if batch == '' and bytes == '' then
  call('RENAME', source, segment)
  call('PERSIST', segment)
  return {waiting, waiting}
end
local moved = move(source, segment, 'RIGHT', 'LEFT', tonumber(batch) or waiting, tonumber(bytes) or math.huge)
return {moved, moved}
