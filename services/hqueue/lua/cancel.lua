-- End a task that no worker has; mark one that a worker has, which hears of it at its next heartbeat.
--
-- WITH tallies: write_tallies
-- WITH events: write_events
-- WITH tasks: stamp read_task write_task end_task wake refused
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV id         of the task
-- Returns the words cancelled or held, or the state in which it has ended; or 0 if there is none. Run twice: it has ended.
local wrong = refused()
if wrong then return wrong end
local task = read_task(id)
if not task then return 0 end
if task.ended then return task.state end
if task.state == 'held' then
  task.cancelled = true
  write_task(id, task)
  return 'held'
end
end_task(id, task, 'dead', 'cancelled')
wake()
write_events(stamp, tonumber(history))
write_tallies()
return 'cancelled'
