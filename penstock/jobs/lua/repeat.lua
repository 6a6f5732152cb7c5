-- Send a job that is repeated and due, and note that in its plan, unless another consumer has, or the plan was changed.
--
-- WITH types: wrong_type
-- KEYS stream     stream  jobs
-- KEYS repeats    zset    names of jobs that are repeated, by when they are due (s since the epoch)
-- KEYS repeated   hash    plans by name (JSON)
-- KEYS keys...    string  values
-- ARGV name       which one is due
-- ARGV due        when, as it was read
-- ARGV known      its plan, as it was read
-- ARGV noted      its plan, with when it was sent; it stays due until `plan.lua` has the next time
-- ARGV fields     the fields of the entry, as JSON: an array of texts
-- ARGV words...   two for each key: the value, and how long it is kept (ms; 0: for ever)
-- Returns 1 if it was sent, else 0. Run twice: 0.
local refused = wrong_type({stream = {stream}, zset = {repeats}, hash = {repeated}})
if refused then return refused end
local call = redis.call
local at = call('ZSCORE', repeats, name)
if not at or math.abs(at - due) > 0.0005 or call('HGET', repeated, name) ~= known then return 0 end
for place, key in ipairs(keys) do
  if words[place * 2] == '0' then
    call('SET', key, words[place * 2 - 1])
  else
    call('SET', key, words[place * 2 - 1], 'PX', words[place * 2])
  end
end
local decoded = cjson.decode(fields)
call('XADD', stream, '*', unpack(decoded, 1, #decoded))
call('HSET', repeated, name, noted)
return 1
