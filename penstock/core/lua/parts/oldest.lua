-- Take the oldest messages, first those in `pending`, then those that wait in `source`: see `reading`.
--
-- USES pending source several saw
-- GIVES take_oldest
local IN_HAND = 128

-- Remove at most `most` messages, and none once they have `bytes`; `here` of them are pending. Call `act` with tables of
-- them, oldest first. Return how many.
local function take_oldest(here, most, bytes, act)
  local taken, hand, count = 0, {}, 1
  while count > 0 do
    local key, left = source, most - taken
    if taken < here then key, left = pending, math.min(left, here - taken) end
    count = several(key, 0, left, bytes)
    local messages = count > 0 and redis.call('RPOP', key, count) or {}
    saw(messages)
    taken = taken + count
    if count == 1 then hand[#hand + 1] = messages[1] end
    if #hand >= IN_HAND or count ~= 1 and #hand > 0 then
      act(hand)
      hand = {}
    end
    if count > 1 then act(messages) end
  end
  return taken
end
