// The client does what the vectors for clients say (`conformance/client`), against the server that `forrst conformance stub` plays.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { createInterface } from "node:readline";
import { describe, test } from "node:test";
import { Client, ForrstError, type Key, type Lease, type LockOptions } from "../src/index.js";
import { binary } from "./support/server.js";

// What the vectors have is not typed.
type Json = any;

const stub = process.env.FORRST_STUB ?? binary();
const list = spawnSync(stub, ["conformance", "stub", "--list"], { encoding: "utf8" });
const names = list.status === 0 ? list.stdout.split("\n").filter((name) => name !== "") : [];

test("there are vectors to play", () => assert(names.length >= 40, `found ${names.length}: ${list.stderr}`));

// Most of their time is waiting.
describe("vector", { concurrency: 8 }, () => {
  const only = process.env.FORRST_CLIENT_VECTOR ?? "";
  for (const name of names) if (name.includes(only)) test(name, () => play(name));
});

async function play(name: string): Promise<void> {
  const child = spawn(stub, ["conformance", "stub", "--vector", name], { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const instructions: Json = JSON.parse((await lines.next()).value ?? "{}");
  const player = new Player(instructions);
  const outcome: Json[] = [];
  for (const action of instructions.do) outcome.push(await player.run(action));
  child.stdin.end(`${JSON.stringify({ outcome })}\n`);
  const verdicts: Json[] = [];
  for await (const line of lines) verdicts.push(JSON.parse(line));
  assert.deepEqual(verdicts, [{ verdict: "passed" }], `${instructions.about} ${JSON.stringify(outcome)}`);
}

class Player {
  readonly #client: Client;
  #lease: Lease | undefined;

  constructor({ url, client: { api_key, timeout_ms } }: Json) {
    this.#client = new Client(url, { ...(api_key && { apiKey: api_key }), ...(timeout_ms && { timeout: timeout_ms }) });
  }

  async run(action: Json): Promise<Json> {
    const [[name, options]] = Object.entries(action) as [[string, Json]];
    const lease = this.#lease;
    switch (name) {
      case "acquire":
        return outcomeOf(this.#client.lock(...lock(options)), (lease) => {
          this.#lease = lease;
          const { fence, owner, fullKeys, remaining } = lease;
          return { fence, owner, full_keys: fullKeys, remaining_ms: Math.round(remaining) };
        });
      case "abandon": {
        const signal = AbortSignal.timeout(options.after_ms);
        const [keys, lockOptions] = lock(options);
        const acquiring = this.#client.lock(keys, { ...lockOptions, signal });
        return acquiring.then(
          () => ({ abandoned: false }),
          (error) => ({ abandoned: error.kind === "cancelled" }),
        );
      }
      case "hold": {
        const start = performance.now();
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, options.for_ms);
          const stop = () => resolve(clearTimeout(timer));
          if (lease!.signal.aborted) stop();
          lease!.signal.addEventListener("abort", stop);
        });
        return { lost: lease!.signal.aborted, after_ms: Math.round(performance.now() - start), held: lease!.isHeld };
      }
      case "sleep":
        return new Promise((resolve) => setTimeout(resolve, options.for_ms, { ok: true }));
      case "is_held":
        return { held: lease!.isHeld };
      case "release":
        return outcomeOf(lease!.release());
      case "drop":
        // What `await using` does, without waiting for it.
        lease![Symbol.asyncDispose]().catch(() => undefined);
        return { ok: true };
      case "release_by":
        return outcomeOf(this.#client.locks.release(options.key, options.owner, options));
      case "call": {
        const { function: fn, arguments: args, deadline_ms, idempotent, lock: around } = options;
        const [key, lockOptions] = around ? lock(around) : [];
        const calling = this.#client.call(fn, args, {
          ...(around && { lock: { ...lockOptions, key, global: around.global, keep: around.keep, renew: around.renew } }),
          ...(deadline_ms && { deadline: deadline_ms }),
          ...(idempotent && { idempotent }),
        });
        return outcomeOf(calling, (result) => ({ result }));
      }
      case "with_lock":
        return this.#withLock(options);
      case "settle":
        return { ok: await this.#client.settle("20s") };
      default:
        throw new Error(`unknown action ${name}`);
    }
  }

  async #withLock(options: Json): Promise<Json> {
    let body = "not_run";
    let fence: string | undefined;
    const [keys, lockOptions] = lock(options);
    const running = this.#client.withLock(keys, lockOptions, async (lease) => {
      ({ fence } = lease);
      body = "cancelled";
      await new Promise<void>((resolve, reject) => {
        const timer = setTimeout(resolve, options.body_ms);
        lease.signal.addEventListener("abort", () => reject((clearTimeout(timer), lease.signal.reason)));
      });
      body = options.body_fails ? "failed" : "completed";
      if (options.body_fails) throw new TypeError("the body fails");
    });
    return { ...(await outcomeOf(running)), body, ...(fence && { fence }) };
  }
}

function lock(options: Json): [string | Key[], LockOptions] {
  const { key, keys, ttl_ms, wait_ms, deadline_ms, watch = false, owner, note, function: fn, shared, limit } = options;
  const given = { ttl: ttl_ms, wait: wait_ms, deadline: deadline_ms, owner, note, function: fn, shared, limit };
  const named = Object.entries(given).filter(([, value]) => value !== undefined);
  return [keys ?? key, { ...Object.fromEntries(named), watch }];
}

async function outcomeOf<T>(promise: Promise<T>, show: (value: T) => object = () => ({})): Promise<Json> {
  try {
    return { ok: true, ...show(await promise) };
  } catch (error) {
    if (error instanceof ForrstError) return { ok: false, error: error.kind, ...(error.code && { code: error.code }) };
    return { ok: false, error: error instanceof TypeError && error.message === "the body fails" ? "body" : String(error) };
  }
}
