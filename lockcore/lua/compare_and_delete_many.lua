-- KEYS[i] a key, ARGV[i] its owner token → a list of 1 (deleted), 0 (not ours) or that key's own error, in order
local answers = {}
for i = 1, #KEYS do
  local held = redis.pcall('GET', KEYS[i])
  if held == ARGV[i] then held = redis.pcall('DEL', KEYS[i]) end
  if type(held) == 'string' or not held then answers[i] = 0 else answers[i] = held end
end
return answers
