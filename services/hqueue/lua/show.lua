-- Read one task with all that it has.
--
-- KEYS tasks      hash    records by id
-- KEYS values     hash    by id the value; `<id>:more`, `:result`, `:error` and `:progress`
-- ARGV id         of the task
-- Returns record, more, result, error and progress, each nil if there is none. Run twice: the same again.
return {redis.call('HGET', tasks, id), redis.call('HGET', values, id .. ':more'),
  redis.call('HGET', values, id .. ':result'), redis.call('HGET', values, id .. ':error'),
  redis.call('HGET', values, id .. ':progress')}
