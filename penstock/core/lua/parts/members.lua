-- Know members of the sets of all queues of hqueue: id and queue. Others, which somebody may have put there, name no task.
--
-- GIVES is_task
local function is_task(member) return string.match(member, '^%d+ [%w_.~%%-]*/[%w_.~-]+$') ~= nil end
