-- KEYS[1] the key, ARGV[1] the owner token, ARGV[2] the new TTL in ms → 1 extended, 0 not ours
-- One byte more than the token is read, however long the value is. GET is for a user who may not run GETRANGE.
local held = redis.pcall('GETRANGE', KEYS[1], 0, #ARGV[1])
if type(held) == 'table' then held = redis.call('GET', KEYS[1]) end
if held == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
