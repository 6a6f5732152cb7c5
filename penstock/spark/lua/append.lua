-- Append the oldest staged rows to a stream, and remove them: each is in one of the two, and in one only.
--
-- WITH types: wrong_type
-- KEYS out     stream  gets an entry a row
-- KEYS staged  list    rows of one task, the first at the tail; a row is fields and values in turns, each with its length
--                      before it (4 bytes, the lowest first)
-- ARGV batch   maximum number of rows to append
-- ARGV bytes   append no more once they have this many bytes together
-- ARGV keep    about how many entries to keep; 0 for all
-- Returns how many rows are still staged. Run twice: the second run appends the next rows.
local call = redis.call
local refused = wrong_type({stream = {out}})
if refused then return refused end

local here, done, size = call('LLEN', staged), 0, 0
batch, bytes = math.min(tonumber(batch), here), tonumber(bytes)
while done < batch and size < bytes do
  local row = call('LINDEX', staged, -1)
  local words, place = {}, 1
  while place <= #row do
    local read, word, after = pcall(struct.unpack, '<I4c0', row, place)
    if not read then
      if done > 0 then break end
      return redis.error_reply('VALUE ' .. staged .. ': the oldest row has no fields and values')
    end
    words[#words + 1], place = word, after
  end
  if place <= #row then break end -- the next call says so, before it writes
  call('XADD', out, '*', unpack(words, 1, #words))
  call('RPOP', staged)
  done, size = done + 1, size + #row
end
if keep ~= '0' then call('XTRIM', out, 'MAXLEN', '~', keep) end
return here - done
