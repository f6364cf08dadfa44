-- KEYS[1] the key, ARGV[1] the owner token → 1 deleted, 0 not ours
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
