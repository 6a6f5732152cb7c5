-- Write without a change of data: WAIT covers only writes of its own connection, so a WAIT behind this one confirms all
-- earlier writes, too.
--
-- FLAGS allow-oom
-- KEYS pending   list   any list
-- Returns nothing. Run twice: the same again.
redis.call('LPUSH', pending, '')
redis.call('LPOP', pending)
