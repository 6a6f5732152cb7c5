-- Cancel a job of a stream for all groups that have not done it, or one that waits for its time: remove it, and say so to
-- its producer.
--
-- WITH types: wrong_type
-- WITH streams: named is_after
-- KEYS stream     stream  jobs
-- KEYS later      zset    jobs that wait for their time, by that time (s since the epoch)
-- KEYS done?      stream  completions of all groups; without it they go to `forward`
-- KEYS forward    stream  completions that are to be published on another server
-- ARGV entry      of the job
-- ARGV member     what it is in `later` if it waits for its time; empty if it has an entry
-- ARGV name       of the stream
-- ARGV prefix     what the names of groups begin with
-- ARGV channel    what the channel begins with on which completions are published
-- ARGV control    channel of those who consume the stream
-- ARGV capacity   about how many completions are kept
-- ARGV err        the error that groups report (JSON)
-- Returns the groups for which it was cancelled, or nil if there is no such job. Run twice: nil.
local call = redis.call
local refused = wrong_type({stream = {stream, done or forward}, zset = {later}})
if refused then return refused end
local waits, found = member ~= ''
if waits then
  if call('ZREM', later, member) == 0 then return false end
  found = cjson.decode(string.match(member, ' (.*)$'))
else
  found = (call('XRANGE', stream, entry, entry)[1] or {})[2]
  if not found then return false end
end
local fields = named(found)
local cancelled = {}
local groups = call('TYPE', stream).ok == 'stream' and call('XINFO', 'GROUPS', stream) or {}
for _, each in ipairs(groups) do
  local group = named(each)
  if waits or call('XACK', stream, group.name, entry) == 1 or is_after(entry, group['last-delivered-id']) then
    local short = string.sub(group.name, #prefix + 1)
    local message = '{"str":' .. cjson.encode(name) .. ',"grp":' .. cjson.encode(short) .. ',"job":'
      .. cjson.encode(fields.job or '') .. ',"err":' .. err .. ',"kept":true}'
    local to = channel .. (fields.prd or '')
    if done then
      call('XADD', done, 'MAXLEN', '~', capacity, '*', 'job', fields.job or '', 'msg', message)
      call('PUBLISH', to, message)
    else
      call('XADD', forward, '*', 'job', fields.job or '', 'msg', message, 'channel', to)
    end
    cancelled[#cancelled + 1] = short
  end
end
if not waits then
  call('XDEL', stream, entry)
  call('PUBLISH', control, 'cancel ' .. entry)
end
return cancelled
