-- KEYS[1] the key, ARGV[1] the owner token, ARGV[2] the new TTL in ms → 1 extended, 0 not ours
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
