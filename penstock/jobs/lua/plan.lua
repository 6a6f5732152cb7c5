-- Store the plan of a job that is repeated, and when it is due, unless it was changed since it was read.
--
-- WITH types: wrong_type
-- KEYS repeats    zset    names of jobs that are repeated, by when they are due (s since the epoch)
-- KEYS repeated   hash    plans by name (JSON)
-- ARGV name       whose plan it is
-- ARGV known      the plan as it was read; empty: there was none
-- ARGV score      when it was due, as it was read; empty: never
-- ARGV plan       the plan
-- ARGV due        when it is due next (s since the epoch); empty: never again
-- ARGV control    channel of those who consume the stream
-- Returns 1 if it was stored, else 0. Run twice: 0, unless nothing is new.
local refused = wrong_type({zset = {repeats}, hash = {repeated}})
if refused then return refused end
local call = redis.call
local at = call('ZSCORE', repeats, name)
if (call('HGET', repeated, name) or '') ~= known or tonumber(at or nil) ~= tonumber(score) then return 0 end
if plan ~= known then call('HSET', repeated, name, plan) end
if due == '' then
  call('ZREM', repeats, name)
elseif tonumber(due) ~= tonumber(score) then
  local time = call('TIME')
  call('ZADD', repeats, due, name)
  call('PUBLISH', control, string.format('due %.3f', math.max(0, due - time[1] - time[2] / 1e6)))
end
return 1
