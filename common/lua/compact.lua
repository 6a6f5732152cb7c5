-- Remove the ids of dead instances from the list of live ones.
--
-- KEYS ids            list   ids of live instances
-- KEYS instances...   hash   the registration of every listed id, named `<namespace>:<id>`; a hash without `host` is
--                            no registration, but an order (`reload`) that came too late
-- Returns how many ids were removed. Run twice: the second run finds nothing.
local gone = 0
for _, instance in ipairs(instances) do
  if redis.pcall('HEXISTS', instance, 'host') == 0 then
    gone = gone + redis.call('LREM', ids, 0, string.match(instance, '[^:]*$'))
  end
end
return gone
