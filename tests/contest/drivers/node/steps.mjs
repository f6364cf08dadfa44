// Steps of `lockbench audit`, as bench/experiments/judge/clients/steps.py says them: a JSON step per line on stdin, a JSON answer per line on stdout.
import { writeSync } from "node:fs";
import { createInterface } from "node:readline";

class BodyError extends Error {}
const ABSENT = { ok: false, absent: true };

export async function step(lock) {
  let held = null;
  const say = (answer) => writeSync(1, JSON.stringify(answer) + "\n");
  const steps = {
    acquire: async ({ resource, ttl_ms, wait_ms }) => {
      held = await lock.acquire(resource, ttl_ms, wait_ms);
      return { ok: held !== null, ...(lock.validMs && held ? { valid_ms: lock.validMs(held) } : {}) };
    },
    release: async () => ({ ok: (await lock.release(held)) !== false }),
    extend: async ({ ttl_ms }) => {
      if (!lock.extend) return ABSENT;
      const extended = await lock.extend(held, ttl_ms);
      if (extended?.expiration) held = extended;
      return { ok: extended !== false };
    },
    held: async () => (lock.isHeld ? { ok: Boolean(lock.isHeld(held)) } : ABSENT),
    hold: async ({ resource, ttl_ms, wait_ms, raises }) => {
      if (!lock.hold) return ABSENT;
      let ran = false;
      try {
        await lock.hold(resource, ttl_ms, wait_ms, async () => {
          ran = true;
          if (raises) throw new BodyError();
        });
      } catch (error) {
        if (!(error instanceof BodyError) && !(error.cause instanceof BodyError))
          return { ok: ran, error: `${error.name}: ${error.message}`.slice(0, 200) };
      }
      return { ok: ran };
    },
    fork: async () => ABSENT,
  };
  say({ ok: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: name, ...words } = JSON.parse(line);
    try {
      say(await steps[name](words));
    } catch (error) {
      say({ ok: false, error: `${error.name}: ${error.message}`.slice(0, 200) });
    }
  }
  process.exit(0);
}
