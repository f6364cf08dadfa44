-- KEYS[i] a key, ARGV[i] its owner token → a list of 1 (deleted) or 0 (not ours), in order
local deleted = {}
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[i] then deleted[i] = redis.call('DEL', KEYS[i]) else deleted[i] = 0 end
end
return deleted
