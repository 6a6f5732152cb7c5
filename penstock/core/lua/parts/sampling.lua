-- Read pairs of id and body from a list (oldest at the head) within a bound in bytes: see `reading`. The first is read
-- alone, then eight times as many as before, if a random sample of their bodies, one in four, is small. A sample of a large
-- body copies all of it, so the first large one is the last sample of the script: from there on pairs are read one by one.
--
-- GIVES several saw
local SMALL, STRIDE, GROWTH, MOST = 8192, 4, 8, 500
local bytes_read, pairs_read, largest = 0, 0, 1
local drawn

-- Note the sizes of bodies that were read.
local function saw(words)
  for place = 2, #words, 2 do
    local size = #words[place]
    bytes_read = bytes_read + size
    if size > largest then largest = size end
  end
  pairs_read = pairs_read + #words / 2
end

-- Return how many pairs of the list `key` to read next, at most `most`, after the `before` oldest; 0 once `bytes` are read.
local function several(key, before, most, bytes)
  if most < 1 or pairs_read > 0 and bytes_read >= bytes then return 0 end
  if pairs_read == 0 or largest > SMALL then return 1 end
  local count, first = math.min(GROWTH * pairs_read, MOST, most, math.floor((bytes - bytes_read) / largest)), 1
  if count < 2 then return 1 end
  drawn = drawn or math.randomseed(redis.call('TIME')[2]) or true
  while first <= count do
    local place = before + math.min(first + math.random(0, STRIDE - 1), count)
    local size = #(redis.call('LINDEX', key, 2 * place - 1) or '')
    if size > largest then largest, count = size, math.min(count, math.floor((bytes - bytes_read) / size)) end
    if size > SMALL then return math.max(1, first - 1) end
    first = first + STRIDE
  end
  return math.max(1, count)
end
