// Node's locks for `make peers`: an order on stdin, a tally on stdout (the two documents of ../../clients/loops.py); with the word
// `steps` the order is one line, and steps.mjs answers those that follow.
// Rules: the library's defaults, one process, one event loop; a cycle is acquire, hold, release.
import { readFileSync, readSync, readdirSync, writeSync } from "node:fs";
import { Redis, connect } from "./locks.mjs";
import { step } from "./steps.mjs";

const stepwise = process.argv[2] === "steps";
const order = JSON.parse(stepwise ? readLine() : readFileSync(0, "utf8"));
const now = () => performance.now() / 1000;
const rest = (seconds) => new Promise((resume) => setTimeout(resume, seconds * 1000));

function readLine() {  // and not a byte more: the rest is for steps.mjs
  const bytes = [], one = Buffer.alloc(1);
  while (readSync(0, one) && one[0] !== 10) bytes.push(one[0]);
  return Buffer.from(bytes).toString("utf8");
}

function runNs(pids) {
  let total = 0;
  for (const pid of pids)
    for (const thread of readdirSync(`/proc/${pid}/task`))
      total += Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, "utf8").split(" ")[0]);
  return total;
}

const clients = order.urls.map((url) => new Redis(url));
for (const client of clients) client.on("error", () => {});
await Promise.all(clients.map((client) => client.ping()));
const lock = connect(order.name, clients);
if (stepwise) await step(lock);

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
      const held = await lock.acquire(resource, order.ttl_ms, order.wait_ms);
      has = true;
      if (measure <= began) {  // however late it was granted: who waits longest must count
        const bucket = Math.floor(Math.log(Math.max((now() - began) * 1e6, 1)) / Math.log(1.01));
        acquires[bucket] = (acquires[bucket] ?? 0) + 1;
        granted += 1;
      }
      if (order.hold_s) await rest(order.hold_s);
      if ((await lock.release(held)) === false) throw new Error("not released");
    } catch (error) {
      if (!has && ["ExecutionError", "LockError", "LockAcquisitionError", "TimeoutError"].includes(error.name)) gaveUp += 1;
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
