// Each Node library behind the same calls: name, clients → { acquire, release, extend?, isHeld?, validMs?, hold? }.
// Rules: the library's defaults but the TTL and, where one must say how long to wait, the order's wait. acquire throws or
// returns null when it gave up; release and extend throw, or return false, when they did not do it.
import { createRequire } from "node:module";

const require = createRequire(process.env.LOCKBENCH_NODE + "/package.json");
export const Redis = require("ioredis");
const left = (lock) => lock.expiration - Date.now();

function redlock4(clients) {
  const manager = new (require("redlock4"))(clients);
  manager.on("clientError", () => {});
  return {
    acquire: (resource, ttl) => manager.lock(resource, ttl),
    release: (lock) => lock.unlock(),
    extend: (lock, ttl) => lock.extend(ttl),
    isHeld: (lock) => left(lock) > 0,
    validMs: left,
  };
}

function redlock5(Redlock, clients) {
  const manager = new Redlock(clients);
  manager.on("error", () => {});
  return {
    acquire: (resource, ttl) => manager.acquire([resource], ttl),
    release: (lock) => lock.release(),
    extend: (lock, ttl) => lock.extend(ttl),
    isHeld: (lock) => left(lock) > 0,
    validMs: left,
    hold: (resource, ttl, _wait, body) => manager.using([resource], ttl, body),
  };
}

function universal(clients) {
  const { createRedlock, IoredisAdapter } = require("redlock-universal");
  const adapters = clients.map((client) => new IoredisAdapter(client));
  const lock = (key, ttl) => createRedlock({ adapters, key, ttl, quorum: Math.floor(clients.length / 2) + 1 });
  return {
    acquire: async (resource, ttl) => {
      const made = lock(resource, ttl);
      return { made, handle: await made.acquire() };
    },
    release: ({ made, handle }) => made.release(handle),
    extend: ({ made, handle }, ttl) => made.extend(handle, ttl),
    hold: (resource, ttl, _wait, body) => lock(resource, ttl).using(body),
  };
}

function semaphore(clients) {
  const { RedlockMutex } = require("redis-semaphore");
  return {
    acquire: async (resource, lockTimeout, acquireTimeout) => {
      const mutex = new RedlockMutex(clients, resource, { lockTimeout, acquireTimeout });
      await mutex.acquire();
      return mutex;
    },
    release: (mutex) => mutex.release(),
    isHeld: (mutex) => mutex.isAcquired,
  };
}

export function connect(name, clients) {
  switch (name) {
    case "node-redlock 4": return redlock4(clients);
    case "node-redlock 5": return redlock5(require("redlock5").default, clients);
    case "@sesamecare-oss/redlock": return redlock5(require("@sesamecare-oss/redlock").Redlock, clients);
    case "redlock-universal": return universal(clients);
    case "redis-semaphore": return semaphore(clients);
  }
  throw new Error(`no library ${name}`);
}
