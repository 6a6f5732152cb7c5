-- Count what a script does, and write the counts at its end. A counter that is no number stays as it is, for the audit
-- to report.
--
-- GIVES tally write_tallies
local tallies = {}

-- Add `number` (1 if nil) to a field of the metric `key`. A field to which 0 is added is not created.
local function tally(key, field, number)
  if number == 0 then return end
  local fields = tallies[key]
  if not fields then
    fields = {}
    tallies[key] = fields
  end
  fields[field] = (fields[field] or 0) + (number or 1)
end

local function write_tallies()
  for key, fields in pairs(tallies) do
    for field, number in pairs(fields) do redis.pcall('HINCRBY', key, field, number) end
  end
end
