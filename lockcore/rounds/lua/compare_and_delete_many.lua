-- KEYS[i] a key, ARGV[i] its owner token → a list of 1 (deleted), 0 (not ours) or that key's own error, in order
-- One byte more than the token is read, however long the value is. GET is for a user who may not run GETRANGE.
local answers = {}
for i = 1, #KEYS do
  local held = redis.pcall('GETRANGE', KEYS[i], 0, #ARGV[i])
  if type(held) == 'table' then held = redis.pcall('GET', KEYS[i]) end
  if held == ARGV[i] then held = redis.pcall('DEL', KEYS[i]) end
  if type(held) == 'string' or not held then answers[i] = 0 else answers[i] = held end
end
return answers
