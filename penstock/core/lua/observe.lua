-- Count one measured value in a metric's hash.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS metric    hash   count sum max and histo0 ... histo90 histo100
-- ARGV value     the measured value (s)
-- ARGV budget    the time it was allowed (s): histoN counts values from N% to N+10% of it, histo100 all that reached it
-- Returns the new count. Run twice: the value is counted twice.
local refused = wrong_type({hash = {metric}})
if refused then return refused end
value, budget = tonumber(value), tonumber(budget)
local hair = 1e-9 -- 0.03 of 0.1 is 30 %, in binary fractions a hair less
local share = math.min(math.floor(value * 10 / budget + hair) * 10, 100)
-- A field that is no number stays as it is.
redis.pcall('HINCRBYFLOAT', metric, 'sum', value)
redis.pcall('HINCRBY', metric, 'histo' .. string.format('%d', share), 1)
if value > (tonumber(redis.call('HGET', metric, 'max')) or -1) then redis.call('HSET', metric, 'max', string.format('%.10g', value)) end
local count = redis.pcall('HINCRBY', metric, 'count', 1)
return type(count) == 'number' and count or 0
