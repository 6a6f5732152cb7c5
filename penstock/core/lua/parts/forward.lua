-- Messages that wait for a token after the clock was set back.
--
-- USES waiting
-- GIVES bring_forward
-- Bring all forward by as much as the first one waits for longer than `interval` (us): each keeps its place before what comes.
local function bring_forward(now, interval)
  local SLACK, PIECE = 1e6, 500
  local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  local late = first and first - now - interval or 0
  if late <= SLACK then return end
  local place, found = 0
  repeat
    found = redis.call('ZRANGE', waiting, place, place + PIECE - 1, 'WITHSCORES')
    for at = 1, #found, 2 do redis.call('ZADD', waiting, 'XX', string.format('%.0f', found[at + 1] - late), found[at]) end
    place = place + PIECE
  until #found == 0
end
