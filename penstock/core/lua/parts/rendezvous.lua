-- Choose a list for a message by a hash: the same list for the same text. If a list comes or goes, only the texts of that
-- list move (rendezvous hashing).
--
-- GIVES hash_dealer
local PRIME = 4294967291

-- Return a number of `digits` hexadecimal digits.
local function hash_of(text, digits) return tonumber(string.sub(redis.sha1hex(text), 1, digits), 16) end

-- Return a value of JSON as text: the same for equal values, whatever the order of members and the spelling of numbers.
-- The server reads a number as a double; those that differ behind its 17th digit share a list.
local function canonical(value)
  local kind = type(value)
  if kind == 'string' then return cjson.encode(value) end
  -- also -0
  if value == 0 then return '0' end
  if kind == 'number' then
    local short = tostring(value)
    return tonumber(short) == value and short or string.format('%.17g', value)
  end
  if kind ~= 'table' then return tostring(value) end
  local parts = {}
  if #value > 0 then
    for place, each in ipairs(value) do parts[place] = canonical(each) end
    return '[' .. table.concat(parts, ',') .. ']'
  end
  for name, each in pairs(value) do parts[#parts + 1] = cjson.encode(name) .. ':' .. canonical(each) end
  table.sort(parts)
  return '{' .. table.concat(parts, ',') .. '}'
end

-- Return the value at `path` in a JSON object, a text as it is; the message if there is none.
local function text_of(message, path)
  if #path == 0 then return message end
  -- perhaps behind a byte order mark
  local sound, found = pcall(cjson.decode, (string.gsub(message, '^\239\187\191', '')))
  if not sound then return message end
  for _, name in ipairs(path) do
    if type(found) ~= 'table' then return message end
    found = found[name]
  end
  if type(found) == 'string' then return found end
  if found == nil or found == cjson.null then return message end
  return canonical(found)
end

-- Return a function that appends each of `count` messages to the table of its list in `groups`, and adds to `fill`;
-- `places` are those of the lists in `names` to choose from. `field` is a dotted path; empty for the whole message. A
-- score is exact: a product has 53 bits at most.
local function hash_dealer(places, names, field)
  local path, factors = {}, {}
  for name in string.gmatch(field, '[^.]+') do path[#path + 1] = name end
  for number, place in ipairs(places) do factors[number] = hash_of(names[place], 7) + 1 end
  local function choose(message)
    local text, best, chosen = hash_of(text_of(message, path), 6) + 1, -1, nil
    for number = 1, #factors do
      local score = text * factors[number] % PRIME
      if score > best then best, chosen = score, places[number] end
    end
    return chosen
  end
  return function(messages, count, groups, fill)
    for number = 1, count do
      local place = choose(messages[number])
      local many = fill[place] + 1
      groups[place][many], fill[place] = messages[number], many
    end
  end
end
