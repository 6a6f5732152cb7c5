-- Find tasks of all queues that are due; remove members that name no task.
--
-- WITH types: wrong_type
-- WITH members: is_task
-- KEYS deadlines  zset    of all queues: tasks under way (id, queue) by what ends their state: lease, ttl, time to start
-- KEYS delayed    zset    of all queues: tasks that wait for their time, by that time
-- KEYS kept       zset    of all queues: tasks that have ended, by when they are forgotten
-- ARGV most       maximum number of tasks of each kind
-- ARGV skip       how many of each kind to pass over
-- Returns the seconds until the next is due, as text (empty if none will be), and ids and queues of those that are. Run
-- twice: the same again.
local call = redis.call
local keys, heads = {deadlines, delayed, kept}, {}
for place, key in ipairs(keys) do  -- before the first write; an idle service asks for nothing else
  local head = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  if head.err then return wrong_type({zset = keys}) end
  heads[place] = head[2] or false
end
local time = call('TIME')
local now, next_at, found = math.floor(time[1] * 1000 + time[2] / 1000) / 1000, math.huge, {}
for place, key in ipairs(keys) do
  local after = heads[place]
  if after and tonumber(after) <= now then
    for _, member in ipairs(call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', skip, most)) do
      if is_task(member) then found[#found + 1] = member else call('ZREM', key, member) end
    end
    after = call('ZRANGEBYSCORE', key, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  if after then next_at = math.min(next_at, tonumber(after)) end
end
return {next_at < math.huge and string.format('%.3f', next_at - now) or '', found}
