-- Choose a list for a message by a hash: the same list for the same text. If a list comes or goes, only the texts of that
-- list move (rendezvous hashing).
--
-- GIVES hash_dealer
local PRIME = 4294967291

-- Return a number of `digits` hexadecimal digits.
local function hash_of(text, digits) return tonumber(string.sub(redis.sha1hex(text), 1, digits), 16) end

-- Return the value at `path` in a JSON object, if it is a text or a number; else the message.
local function text_of(message, path)
  if #path == 0 then return message end
  local sound, found = pcall(cjson.decode, message)
  found = sound and found
  for _, name in ipairs(path) do found = type(found) == 'table' and found[name] end
  return (type(found) == 'string' or type(found) == 'number') and tostring(found) or message
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
