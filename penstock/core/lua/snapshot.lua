-- Read many keys at one instant, on a full server, too. Every command must be one that only reads.
--
-- WITH commands: replies_of_all
-- Returns the replies in order. Run twice: reads again.
return replies_of_all()
