-- Keep the list of ids in flight short.
--
-- USES ids deadlines delayed
-- GIVES drop_finished

-- Remove finished ids from the old end of the list, at most `most`, up to the first that is in flight.
local function drop_finished(most)
  for _ = 1, most do
    local oldest = redis.call('LINDEX', ids, -1)
    if not oldest or redis.call('ZSCORE', deadlines, oldest) or redis.call('ZSCORE', delayed, oldest) then break end
    redis.call('RPOP', ids)
  end
end
