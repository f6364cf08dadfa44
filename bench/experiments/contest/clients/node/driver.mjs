// node-redlock for `make peers`: an order on stdin, a tally on stdout (the two documents of ../order.py).
// Rules: the library's defaults, one process, one event loop; a cycle is acquire, hold, release.
import { readFileSync, readdirSync, writeSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.LOCKBENCH_NODE + "/package.json");
const order = JSON.parse(readFileSync(0, "utf8"));
const Redis = require("ioredis");
const now = () => performance.now() / 1000;
const rest = (seconds) => new Promise((resume) => setTimeout(resume, seconds * 1000));

function runNs(pids) {
  let total = 0;
  for (const pid of pids)
    for (const thread of readdirSync(`/proc/${pid}/task`))
      total += Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, "utf8").split(" ")[0]);
  return total;
}

function connect(clients) {
  if (order.name === "node-redlock 5") {
    const Redlock = require("redlock5").default;
    const manager = new Redlock(clients);
    manager.on("error", () => {});
    return { acquire: (resource) => manager.acquire([resource], order.ttl_ms), release: (held) => held.release() };
  }
  const Redlock = require("redlock4");
  const manager = new Redlock(clients);
  manager.on("clientError", () => {});
  return { acquire: (resource) => manager.lock(resource, order.ttl_ms), release: (held) => held.unlock() };
}

const clients = order.urls.map((url) => new Redis(url));
for (const client of clients) client.on("error", () => {});
await Promise.all(clients.map((client) => client.ping()));
const lock = connect(clients);

const acquires = {}, leases = new Array(order.callers).fill(0), bins = {}, errors = {};
let gaveUp = 0, allCycles = 0, asked = 0, granted = 0;
writeSync(2, "begin\n");
const begin = now(), measure = begin + order.warmup_s, end = measure + order.seconds;

async function call(caller) {
  const resource = order.own ? `peers:r${caller}` : "peers:hot";
  for (;;) {
    const began = now();
    if (began >= end) return;
    asked += measure <= began;
    let has = false;
    try {
      const held = await lock.acquire(resource);
      has = true;
      if (measure <= began) {  // however late it was granted: who waits longest must count
        const bucket = Math.floor(Math.log(Math.max((now() - began) * 1e6, 1)) / Math.log(1.01));
        acquires[bucket] = (acquires[bucket] ?? 0) + 1;
        granted += 1;
      }
      if (order.hold_s) await rest(order.hold_s);
      await lock.release(held);
    } catch (error) {
      if (!has && ["ExecutionError", "LockError"].includes(error.name)) gaveUp += 1;
      else {
        errors[error.name] = (errors[error.name] ?? 0) + 1;
        await rest(0.001);
      }
      continue;
    }
    const ended = now();
    allCycles += 1;
    const bin = Math.floor((ended - begin) / 0.1);
    bins[bin] = (bins[bin] ?? 0) + 1;
    if (measure <= began && ended <= end) leases[caller] += 1;
  }
}

const calls = Promise.all(leases.map((_, caller) => call(caller)));
await rest(order.warmup_s);
const serverBefore = runNs(order.pids), clientBefore = process.cpuUsage();
await rest(Math.max(end - now(), 0));
const used = process.cpuUsage(clientBefore), serverAfter = runNs(order.pids);
await Promise.race([calls, rest(order.wait_ms / 1000 + 10)]);
writeSync(1, JSON.stringify({
  cycles: leases.reduce((sum, count) => sum + count, 0),
  seconds: order.seconds,
  acquires, failed: asked - granted,
  leases_by_caller: leases,
  bins, gave_up: gaveUp, all_cycles: allCycles, errors,
  client_us: used.user + used.system,
  server_us: (serverAfter - serverBefore) / 1e3,
}) + "\n");
process.exit(0);
