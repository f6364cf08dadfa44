#!/bin/sh
# Makes the stack's passwords once, each into the volume of those who need it; nothing is printed. Run by docker-compose.yml.
set -eu
umask 022
draw() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
servers="redis-0 redis-1 redis-2 redis-3 redis-4"

if [ ! -s /secrets/redis/redis.conf ]; then
  password=$(draw)
  printf '%s' "$password" > /secrets/redis/password
  for server in $servers; do printf 'redis://:%s@%s:6379\n' "$password" "$server"; done > /secrets/redis/targets
  printf 'requirepass %s\n' "$password" > /secrets/redis/redis.conf
fi
[ -s /secrets/grafana/admin-password ] || draw > /secrets/grafana/admin-password
[ -s /secrets/locust/password ] || draw > /secrets/locust/password
