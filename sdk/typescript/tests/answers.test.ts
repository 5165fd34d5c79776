// What the client makes of answers that are late, lost or unusual, beyond the vectors.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { CancelledError, Client, LostAnswerError, LostError, NotUnderstoodError } from "../src/index.js";
import { extended, Fake, grant } from "./support/fake.js";
import { failure } from "./support/failure.js";
import { fired, until } from "./support/server.js";

describe("answers", { concurrency: 4 }, () => {
  test("a lease that has ended here when its grant arrives is extended before it is handed over", async () => {
    await using server = await Fake.start((received) =>
      received.fn === "acquire" ? grant(received, { ttl_remaining_ms: 1 }) : extended(received),
    );
    await using client = new Client(server.url);
    const lease = await client.lock("k", { ttl: "60s" });
    assert(lease.isHeld && lease.remaining > 30_000);
    assert.deepEqual(server.received.map(({ fn }) => fn), ["acquire", "extend"]);
    await lease.release();
  });

  test("a grant that cannot be extended in time is lost, and released in the background", async () => {
    await using server = await Fake.start((received) => {
      if (received.fn === "acquire") return grant(received, { ttl_remaining_ms: 1 });
      return received.fn === "extend" ? { code: "UNAVAILABLE" } : { result: { released: true } };
    });
    await using client = new Client(server.url, { retry: { tries: 2, firstPause: 1 } });
    await failure(client.lock("k", { ttl: "60s" }), LostError);
    assert(await client.settle("60s"));
    assert.deepEqual(server.received.map(({ fn }) => fn), ["acquire", "extend", "extend", "release"]);
  });

  test("a retry after a lost answer does not use a connection of the pool", async () => {
    let isBroken = true;
    await using server = await Fake.start(async ({ fn }) => {
      if (fn === "demo.slow") await new Promise((resolve) => setTimeout(resolve, 20));
      if (fn === "ping" && isBroken) return void (isBroken = false);
      return { result: {} };
    });
    await using client = new Client(server.url, { retry: { firstPause: 1 } });
    // Two connections in the pool.
    await Promise.all([client.call("demo.slow"), client.call("demo.slow")]);
    await client.ping();
    const pings = server.received.filter(({ fn }) => fn === "ping");
    assert.deepEqual(pings.map(({ isReused }) => isReused), [true, false]);
  });

  test("a call that is cancelled during a pause is cancelled on the server, where an earlier try may still run", async () => {
    const controller = new AbortController();
    await using server = await Fake.start(({ fn }) => {
      if (fn === "ping") return { result: {} };
      return { code: fn === "cancel" ? "CANCELLATION_TOO_LATE" : "INTERNAL_ERROR" };
    });
    await using client = new Client(server.url, { retry: { firstPause: "60s", longestPause: "60s", within: "1h" } });
    const calling = failure(client.call("a.b", {}, { idempotent: true, signal: controller.signal }), CancelledError);
    await until(() => server.received.length === 1, "the call");
    // The answer to the call is here before these.
    await client.ping();
    await client.ping();
    controller.abort();
    assert((await calling).mayHaveRun);
    assert(await client.settle("60s"));
    const [call, , , cancel] = server.received;
    assert.equal(cancel?.args.token, call?.request.extensions?.[0]?.options.token);
  });

  test("a call that is cancelled during its second try cancels both on the server", async () => {
    const controller = new AbortController();
    let tries = 0;
    await using server = await Fake.start(({ fn }) => {
      if (fn === "cancel") return { result: { cancelled: true } };
      tries += 1;
      if (tries === 1) return undefined;
      controller.abort();
      return new Promise(() => undefined);
    });
    await using client = new Client(server.url, { retry: { firstPause: 1 } });
    await failure(client.call("a.b", {}, { idempotent: true, signal: controller.signal }), CancelledError);
    assert(await client.settle("60s"));
    const tokens = (fn: string) => server.received.filter((received) => received.fn === fn);
    const sent = tokens("a.b").map(({ request }) => request.extensions?.[0]?.options.token);
    assert.equal(new Set(sent).size, 2);
    assert.deepEqual(tokens("cancel").map(({ args }) => args.token).sort(), sent.sort());
  });

  test("an answer that comes although it was too late to cancel the call is returned", async () => {
    const controller = new AbortController();
    let answer: (value: { result: object }) => void;
    await using server = await Fake.start(({ fn }) => {
      if (fn === "cancel") {
        setTimeout(() => answer({ result: { done: true } }), 20);
        return { code: "CANCELLATION_TOO_LATE" };
      }
      controller.abort();
      return new Promise((resolve) => (answer = resolve));
    });
    await using client = new Client(server.url);
    assert.deepEqual(await client.call("a.b", {}, { signal: controller.signal }), { done: true });
  });

  test("a cancellation that overtakes its call is repeated", async () => {
    const controller = new AbortController();
    let asked = 0;
    await using server = await Fake.start(({ fn }) => {
      if (fn === "cancel") return ++asked < 3 ? { code: "CANCELLATION_TOKEN_UNKNOWN" } : { result: { cancelled: true } };
      controller.abort();
      return new Promise(() => undefined);
    });
    await using client = new Client(server.url);
    await failure(client.call("a.b", {}, { signal: controller.signal }), CancelledError);
    assert.equal(asked, 3);
  });

  test("a single try is made of a wait without retries", async () => {
    await using server = await Fake.start(({ fn }) => (fn === "acquire" ? undefined : { result: { withdrawn: true, was: "unknown" } }));
    await using client = new Client(server.url, { retry: false });
    await failure(client.lock("k", { wait: "60s" }), LostAnswerError);
    assert(await client.settle("60s"));
    assert.deepEqual(server.received.map(({ fn }) => fn), ["acquire", "withdraw"]);
  });

  test("a grant that cannot be understood is withdrawn", async () => {
    await using server = await Fake.start(({ fn }) =>
      fn === "acquire" ? { result: { acquired: true } } : { result: { withdrawn: true, was: "held" } },
    );
    await using client = new Client(server.url);
    await failure(client.lock("k"), NotUnderstoodError);
    assert(await client.settle("60s"));
    assert.deepEqual(server.received.map(({ fn }) => fn), ["acquire", "withdraw"]);
  });

  test("an answer of `watch` proves a loss only if it shows all holders, or none", async () => {
    const others = [{ fence: "000000000000001" }];
    let answers = [
      // Not every holder, and no holder because the caller may not see them.
      { locked: true, holders: others, holder_count: 200 },
      { locked: true },
    ];
    await using server = await Fake.start((received) => {
      if (received.fn === "acquire") return grant(received);
      const revision = String(answers.length);
      return { result: { key: "lock:k", waiters: 0, revision, ...(answers.shift() ?? { locked: false }) } };
    });
    await using client = new Client(server.url, { watch: true });
    const lease = await client.lock("k", { ttl: "60s" });
    await until(() => answers.length === 0, "two answers");
    assert(lease.isHeld);
    assert.match(String(await fired(lease.signal)), /no longer held/);
    const watches = server.received.filter(({ fn }) => fn === "watch");
    assert.deepEqual(watches.map(({ args }) => args.since), [undefined, "2", "1"]);
  });
});
