-- Refuse a caller whose fencing token is not that of the lease: another replica is the active one.
--
-- USES lease token
-- Returns the error FENCED. Run twice: the same again.
if lease and redis.call('HGET', lease, 'token') ~= token then return redis.error_reply('FENCED ' .. lease) end
