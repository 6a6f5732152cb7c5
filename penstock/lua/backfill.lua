-- Give a new subscriber some of what another one holds: the newest messages that were delivered before it was there.
--
-- What the new one was given, the other one was given, too, as its newest messages; so the others begin behind them.
--
-- KEYS source     list   the other subscriber's (newest at the head)
-- KEYS target     list   the new one's
-- KEYS taken      hash   metric of the service that fills both: by list the copies owed to it
-- KEYS delivered  hash   metric: by list the copies that it got
-- ARGV batch      most messages to copy
-- Returns how many were copied. Run twice: the second run copies those before them.
local call = redis.call
for kind, keys in pairs({list = {source, target}, hash = {taken, delivered}}) do
  for _, key in ipairs(keys) do
    local found = call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then
      return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. found .. ', expected a ' .. kind)
    end
  end
end
local given = tonumber(call('HGET', taken, target) or 0)
local possible = tonumber(call('HGET', taken, 'count') or 0) - given
local most = math.min(tonumber(batch), possible)
if most <= 0 then return 0 end
local older = call('LRANGE', source, given, given + most - 1)
for first = 1, #older, 1000 do
  call('RPUSH', target, unpack(older, first, math.min(first + 999, #older)))
end
if #older > 0 then
  call('HINCRBY', taken, target, #older)
  call('HINCRBY', delivered, target, #older)
  call('HINCRBY', delivered, 'count', #older)
end
return #older
