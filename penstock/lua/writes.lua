-- Write many keys at one instant, on a full server, too, as MULTI does otherwise: a command that fails stops no other.
--
-- FLAGS allow-oom
-- WITH commands
-- Returns the replies in order. Run twice: writes again.
return replies
