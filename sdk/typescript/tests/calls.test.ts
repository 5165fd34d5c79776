// Calls of functions, their locks, deadlines and cancellation.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import {
  CancelledError,
  Client,
  ContendedError,
  DeadlineExceededError,
  FunctionError,
  heldFrom,
  RejectedError,
  TimedOutError,
} from "../src/index.js";
import { Server, until } from "./support/server.js";
import { failure } from "./support/failure.js";

describe("calls", { concurrency: 4 }, () => {
  let server: Server;
  let client: Client;

  before(async () => {
    server = await Server.start("--store", "memory:", "--max-block", "2s");
    client = new Client(server.url);
  });

  after(async () => {
    await client?.close();
    await server?.stop();
  });

  test("a call returns the result of the function", async () => {
    assert.deepEqual(await client.call("demo.echo", { a: 1 }), { a: 1 });
    const { status } = await client.call<{ status: string }>("payments.charge", { user_id: "u", amount: 100 });
    assert.equal(status, "succeeded");
  });

  test("a call runs under its lock", async () => {
    const response = await client.response("demo.echo", {}, { lock: { key: "echo", ttl: "30s", keep: true, note: "why" } });
    const held = heldFrom(response)!;
    assert.deepEqual(held.fullKeys, ["lock:demo.echo:echo"]);
    const refused = await failure(client.call("demo.echo", {}, { lock: "echo" }), ContendedError);
    assert(!refused.mayHaveRun);
    await failure(client.call("demo.echo", {}, { lock: { key: "echo", wait: 10 } }), TimedOutError);
    await client.locks.release(held.fullKeys[0]!, held.owner, { fence: held.fence });
    await client.call("demo.echo", {}, { lock: "echo" });
    assert.equal(heldFrom(await client.response("demo.echo")), undefined);
  });

  test("calls under one lock never run at the same time", async () => {
    const count = () =>
      client.call("demo.counter", { name: "n", ms: 5 }, { lock: { key: ["n", "m"], global: true, wait: "60s", renew: true } });
    await Promise.all(Array.from({ length: 10 }, count));
    assert.deepEqual(await count(), { value: 11 });
  });

  test("the error of a function has its code, and is not retried", async () => {
    const error = await failure(client.call("demo.fail", { code: "OUT_OF_STOCK", message: "none left" }), FunctionError);
    assert.equal(error.code, "OUT_OF_STOCK");
    assert.match(error.message, /none left \(OUT_OF_STOCK\)/);
    assert(error.mayHaveRun);
  });

  test("a wrong request is rejected with a pointer", async () => {
    const error = await failure(client.call("payments.charge", { user_id: "u", amount: "much" }), RejectedError);
    assert.equal(error.pointer, "/call/arguments/amount");
    assert.equal((await failure(client.call("no.such"), RejectedError)).code, "FUNCTION_NOT_FOUND");
    assert.equal((await failure(client.call("demo.echo", {}, { version: "9.0.0" }), RejectedError)).code, "VERSION_NOT_FOUND");
    const lock = { key: "k", ttl: "25h" } as const;
    assert.equal((await failure(client.call("demo.echo", {}, { lock }), RejectedError)).pointer, "/extensions/0/options/ttl");
  });

  test("a wrong option fails with its name, and nothing is sent", async () => {
    const wrong = "soon" as "1s";
    await assert.rejects(client.lock("k", { ttl: wrong }), /`ttl` is "soon"/);
    await assert.rejects(client.lock("k", { ttl: 0 }), /`ttl` is 0/);
    await assert.rejects(client.call("demo.echo", {}, { deadline: "-1s" }), /`deadline` is "-1s"/);
    await assert.rejects(client.lock("k", { retry: { tries: 0 } }), /`retry.tries` is 0/);
    await assert.rejects(client.lock([]), /at least one key/);
    assert.throws(() => new Client("ftp://host"), /must start with http, https or unix/);
    assert.throws(() => new Client("http://user:secret@host"), (error: Error) => !error.message.includes("secret"));
    assert.throws(() => new Client(server.url, { apiKey: "secret\n" }), (error: Error) => !error.message.includes("secret"));
  });

  test("a deadline ends a call that waits and one that runs", async () => {
    await using _held = await client.lock("deadline", { function: "demo.echo" });
    const lock = { key: "deadline", wait: "60s" } as const;
    await failure(client.call("demo.echo", {}, { lock, deadline: "300ms" }), DeadlineExceededError);
    await failure(client.call("demo.sleep", { ms: 60_000 }, { deadline: "300ms" }), DeadlineExceededError);
  });

  test("a call that is cancelled while its function runs releases its lock", async () => {
    const controller = new AbortController();
    const lock = { key: "cancel:running", ttl: "1h" } as const;
    const running = failure(client.call("demo.sleep", { ms: 60_000 }, { lock, signal: controller.signal }), CancelledError);
    const status = () => client.locks.status("lock:demo.sleep:cancel:running");
    await until(async () => (await status()).locked, "the call");
    const reason = new Error("enough");
    controller.abort(reason);
    const error = await running;
    assert(error.mayHaveRun);
    await until(async () => !(await status()).locked, "the release");
  });

  test("a call that is cancelled while it waits for its lock leaves the queue", async () => {
    await using _held = await client.lock("cancel:waiting", { function: "demo.echo" });
    const controller = new AbortController();
    const lock = { key: "cancel:waiting", wait: "60s" } as const;
    const waiting = failure(client.call("demo.echo", {}, { lock, signal: controller.signal }), CancelledError);
    const queue = () => client.locks.waiters("lock:demo.echo:cancel:waiting");
    await until(async () => (await queue()).length === 1, "the waiter");
    controller.abort();
    await waiting;
    await until(async () => (await queue()).length === 0, "the empty queue");
  });

  test("a call whose signal fires before or after it is not disturbed", async () => {
    const controller = new AbortController();
    assert.deepEqual(await client.call("demo.echo", { a: 1 }, { signal: controller.signal }), { a: 1 });
    controller.abort();
    const error = await failure(client.call("demo.echo", {}, { signal: controller.signal }), CancelledError);
    assert(!error.mayHaveRun);
  });

  test("a wait that is longer than the server allows is divided", async () => {
    const held = await client.lock("long", { ttl: "60s" });
    let isGranted = false;
    const waiting = client.lock("long", { wait: "1h" }).then((lease) => {
      isGranted = true;
      return lease;
    });
    const untils = new Set<number>();
    // The second request has another end than the first.
    await until(async () => {
      const [waiter] = await client.locks.waiters("lock:long");
      if (waiter) untils.add(waiter.until.getTime());
      return untils.size === 2;
    }, "a second request");
    assert(!isGranted);
    await held.release();
    await (await waiting).release();
  });

  test("several long waits that begin together are all divided", async () => {
    await using fresh = new Client(server.url);
    const work = (n: number) => fresh.withLock("together", { wait: "1h" }, () => n);
    const calls = Array.from({ length: 5 }, (_, n) => fresh.call("demo.echo", { n }, { lock: { key: "together", wait: "1h" } }));
    assert.deepEqual(await Promise.all([0, 1, 2, 3, 4].map(work)), [0, 1, 2, 3, 4]);
    assert.equal((await Promise.all(calls)).length, 5);
  });

  test("the server describes itself", async () => {
    assert.equal((await client.health()).status, "healthy");
    assert(((await client.capabilities()).functions as string[]).includes("demo.echo"));
    assert((await client.describe("demo.echo")) !== undefined);
  });
});
