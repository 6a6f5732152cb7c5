-- Send a job that is repeated, unless another consumer has, and note when it is due next.
--
-- WITH types: wrong_type
-- KEYS stream     stream  jobs
-- KEYS repeats    zset    names of jobs that are repeated, by when they are due (s since the epoch)
-- KEYS keys...    string  values
-- ARGV name       which one is due
-- ARGV due        when, as it was read
-- ARGV next_due   when it is due next (s since the epoch)
-- ARGV fields     the fields of the entry, as JSON: an array of texts
-- ARGV words...   two for each key: the value, and how long it is kept (ms; 0: for ever)
-- Returns 1 if it was sent, 0 if another one was quicker or it is not repeated any more. Run twice: 0.
local refused = wrong_type({stream = {stream}, zset = {repeats}})
if refused then return refused end
local call = redis.call
local at = call('ZSCORE', repeats, name)
if not at or math.abs(at - due) > 0.0005 then return 0 end
for place, key in ipairs(keys) do
  if words[place * 2] == '0' then
    call('SET', key, words[place * 2 - 1])
  else
    call('SET', key, words[place * 2 - 1], 'PX', words[place * 2])
  end
end
local decoded = cjson.decode(fields)
call('XADD', stream, '*', unpack(decoded, 1, #decoded))
call('ZADD', repeats, next_due, name)
return 1
