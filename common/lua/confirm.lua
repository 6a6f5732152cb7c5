-- Write without changing anything, so that a wait behind it confirms all that was written before.
--
-- FLAGS allow-oom
-- KEYS pending   list   any list
-- Returns nothing. Run twice: the same again.
redis.call('LPUSH', pending, '')
redis.call('LPOP', pending)
