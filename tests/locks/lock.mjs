// A lock by the protocol of `lockbench judge`: `acquire NAME` and `release NAME` on stdin, a line each on stdout.
// SET NX PX and a script that compares, over a socket of its own; nothing is installed.
import { randomUUID } from "node:crypto";
import net from "node:net";
import readline from "node:readline";

const RELEASE = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`;
const place = new URL(process.argv.at(-1));
const server = net.connect(Number(place.port), place.hostname);
server.setNoDelay();
const waiting = [];
readline.createInterface({ input: server }).on("line", (line) => waiting.shift()?.(line));

function ask(...words) {
  const texts = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
  server.write(`*${words.length}\r\n${texts.join("")}`);
  return new Promise((done) => waiting.push(done));
}

const owner = randomUUID();
for await (const step of readline.createInterface({ input: process.stdin })) {
  const [verb, name] = step.split(" ");
  let answer;
  if (verb === "acquire") {
    while ((answer = await ask("SET", name, owner, "NX", "PX", "2000")) === "$-1") {
      await new Promise((rested) => setTimeout(rested, 5));
    }
  } else {
    answer = await ask("EVAL", RELEASE, "1", name, owner);
  }
  console.log(["+OK", ":1"].includes(answer) ? "ok" : answer === ":0" ? "the lock had ended" : answer);
}
