// Locks for work that runs here, on each durable store of the server.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Client, ContendedError, LostError, MismatchError, NotHeldError, CancelledError, TimedOutError } from "../src/index.js";
import { failure } from "./support/failure.js";
import { fired, Folder, Redis, Server, until } from "./support/server.js";

for (const store of ["embedded", "redis"] as const) {
  describe(`on the ${store} store`, { concurrency: 4 }, () => {
    let server: Server;
    let other: Client;
    let client: Client;
    let redis: Redis | undefined;
    let second: Server | undefined;
    const folder = new Folder();

    before(async () => {
      redis = store === "redis" ? await Redis.start() : undefined;
      const url = redis?.url ?? `embedded:${folder.file("store")}`;
      server = await Server.start("--store", url);
      client = new Client(server.url);
      // On Redis, two servers share the locks.
      second = redis && (await Server.start("--store", url));
      other = new Client((second ?? server).url);
    });

    after(async () => {
      await client?.close();
      await other?.close();
      await server?.stop();
      await second?.stop();
      await redis?.[Symbol.asyncDispose]();
      folder[Symbol.dispose]();
    });

    test("a lock is held until its lease is released", async () => {
      const lease = await client.lock("held", { ttl: "30s" });
      assert.match(lease.fence, /^\d{15}$/);
      assert.equal(lease.fullKey, "lock:held");
      assert(lease.isHeld && lease.remaining > 0 && lease.remaining < 30_000);
      const refused = await failure(other.lock("held"), ContendedError);
      assert.deepEqual(refused.details?.blocked_by, ["lock:held"]);
      assert(refused.retryAfter! > 0);
      const waited = await failure(other.lock("held", { wait: "20ms" }), TimedOutError);
      assert.equal(waited.code, "LOCK_TIMEOUT");
      await lease.release();
      assert(!lease.isHeld);
      assert(!lease.signal.aborted);
      assert.throws(() => lease.check(), LostError);
      const next = await other.lock("held");
      assert(next.fence > lease.fence);
      await next.release();
    });

    test("`await using` releases the lock at the end of the block", async () => {
      {
        await using lease = await client.lock("using", { ttl: "30s" });
        assert(lease.isHeld);
        assert((await other.locks.status("lock:using")).locked);
      }
      assert.deepEqual(await other.locks.status("lock:using"), { locked: false, fullKey: "lock:using", waiters: 0 });
    });

    test("`withLock` returns what its body returns, and releases the lock also when the body fails", async () => {
      assert.equal(await client.withLock("with", ({ fence, signal }) => `${fence.length} ${signal.aborted}`), "15 false");
      const error = new Error("mine");
      await assert.rejects(client.withLock("with", { ttl: "10s" }, () => Promise.reject(error)), error);
      assert(!(await other.locks.status("lock:with")).locked);
    });

    test("waiters get the lock one after the other, and never two at once", async () => {
      const fences: string[] = [];
      let inside = 0;
      const work = (using: Client) =>
        using.withLock("queue", { ttl: "30s", wait: "60s" }, async ({ fence }) => {
          inside += 1;
          assert.equal(inside, 1);
          fences.push(fence);
          await new Promise((resolve) => setImmediate(resolve));
          inside -= 1;
        });
      await Promise.all(Array.from({ length: 20 }, (_, index) => work(index % 2 ? client : other)));
      assert.equal(fences.length, 20);
      assert.deepEqual(fences, [...fences].sort());
      assert.equal(new Set(fences).size, 20);
    });

    test("shared leases are held together, an exclusive one alone", async () => {
      await using first = await client.lock("shared", { shared: true });
      await using second = await other.lock("shared", { shared: true });
      assert(first.isHeld && second.isHeld);
      await failure(client.lock("shared"), ContendedError);
      const status = await client.locks.status("lock:shared");
      assert(status.locked && status.kind === "shared" && status.holderCount === 2);
    });

    test("a semaphore has so many leases as its limit says", async () => {
      await using _first = await client.lock("limit", { limit: 2 });
      await using _second = await other.lock("limit", { limit: 2 });
      await failure(client.lock("limit", { limit: 2 }), ContendedError);
      const status = await client.locks.status("lock:limit");
      assert(status.locked && status.kind === "limit");
      assert.deepEqual([status.limit, status.available], [2, 0]);
    });

    test("several keys are one lease", async () => {
      const lease = await client.lock(["set:a", { key: "set:b", shared: true }]);
      assert.deepEqual(lease.fullKeys, ["lock:set:a", "lock:set:b"]);
      await failure(other.lock("set:a"), ContendedError);
      await (await other.lock("set:b", { shared: true })).release();
      await lease.release();
      assert(!(await other.locks.status("lock:set:a")).locked);
      const single = await client.lock(["set:one"]);
      assert.equal(single.fullKey, "lock:set:one");
      await single.release();
    });

    test("a lease is renewed in the background", async () => {
      await using lease = await client.lock("renewed", { ttl: "3s" });
      const first = lease.expiresAt;
      await until(() => lease.expiresAt > first, "a renewal");
      assert(lease.isHeld);
      await failure(other.lock("renewed"), ContendedError);
    });

    test("a forced release fires the signal at once, long before the next renewal", async () => {
      const lease = await client.lock("forced", { ttl: "1h", watch: true });
      const status = await other.locks.status("lock:forced");
      assert(status.locked && status.holders[0]?.fence === lease.fence);
      assert.equal(await other.locks.forceRelease("lock:forced"), 1);
      assert(await fired(lease.signal) instanceof LostError);
      assert(!lease.isHeld);
      assert.equal(lease.remaining, 0);
      await failure(lease.release(), LostError);
      await failure(other.locks.forceRelease("lock:forced"), NotHeldError);
    });

    test("a body whose lock is lost ends with a `LostError`, even if it succeeds", async () => {
      const run = (key: string, end: (signal: AbortSignal) => unknown) =>
        client.withLock(key, { ttl: "1h", watch: true }, async ({ signal, fullKey, fence }) => {
          await other.locks.forceRelease(fullKey, { fence });
          await fired(signal);
          return end(signal);
        });
      await failure(run("lost:a", () => "done"), LostError);
      await failure(run("lost:b", (signal) => signal.throwIfAborted()), LostError);
      const mine = new Error("mine");
      const lost = await failure(run("lost:c", () => Promise.reject(mine)), LostError);
      assert.equal(lost.cause, mine);
    });

    test("an acquisition that is aborted leaves the queue", async () => {
      await using _held = await client.lock("abort");
      const controller = new AbortController();
      const waiting = failure(other.lock("abort", { wait: "5m", signal: controller.signal, owner: "waiter" }), CancelledError);
      const queue = () => client.locks.waiters("lock:abort", { limit: 10 });
      await until(async () => (await queue()).length === 1, "a waiter");
      assert.equal((await queue())[0]?.position, 1);
      const reason = new Error("changed my mind");
      controller.abort(reason);
      assert.equal((await waiting).cause, reason);
      await until(async () => (await queue()).length === 0, "an empty queue");
      assert(await other.settle());
      const never = await failure(other.lock("abort", { signal: controller.signal }), CancelledError);
      assert(!never.mayHaveRun);
    });

    test("an acquisition that is repeated with its attempt gets the same lease", async () => {
      const options = { owner: "me", attempt: "one", ttl: "30s" } as const;
      const first = await client.lock("attempt", options);
      const again = await other.lock("attempt", options);
      assert.equal(again.fence, first.fence);
      assert.equal(await other.locks.withdraw("lock:attempt", "me", "one"), "held");
      assert.equal(await other.locks.withdraw("lock:attempt", "me", "never"), "unknown");
      await failure(first.release(), LostError);
      await again.release().catch(() => undefined);
    });

    test("a lease that is kept is extended and released by its owner token", async () => {
      const lease = await client.lock("kept", { ttl: "10s", owner: "batch", note: "nightly export" });
      const { fullKeys, owner, fence } = lease.keep();
      await lease.release();
      const [info] = (await other.locks.list({ prefix: "lock:kept", limit: 5 })).locks;
      assert(info?.holders[0]?.note === "nightly export");
      const extended = await other.locks.extend(fullKeys[0]!, owner, "1h", { fence });
      assert(extended.expiresAt.getTime() > lease.expiresAt.getTime());
      await failure(other.locks.release("lock:kept", "somebody else"), MismatchError);
      await other.locks.release("lock:kept", owner, { fence });
      assert(!(await other.locks.status("lock:kept")).locked);
    });

    test("the list of locks is read page after page", async () => {
      const leases = await Promise.all(["a", "b", "c"].map((key) => client.lock(`list:${key}`, { ttl: "1h" })));
      const page = await client.locks.list({ prefix: "lock:list:", limit: 2 });
      assert.equal(page.locks.length, 2);
      const rest = await client.locks.list({ prefix: "lock:list:", cursor: page.cursor! });
      assert.equal(rest.locks.length, 1);
      const all = [];
      for await (const { fullKey } of client.locks.listAll({ prefix: "lock:list:" })) all.push(fullKey);
      assert.deepEqual(all.sort(), ["lock:list:a", "lock:list:b", "lock:list:c"]);
      await Promise.all(leases.map((lease) => lease.release()));
    });

    test("a watch answers as soon as the leases change", async () => {
      const { revision, locked } = await other.locks.watch("lock:watched");
      assert(!locked);
      const watching = other.locks.watch("lock:watched", { since: revision, wait: "5m" });
      const lease = await client.lock("watched");
      const changed = await watching;
      assert(changed.locked && changed.holders[0]?.fence === lease.fence);
      await lease.release();
    });

    test("the lock of a function is not the global one of the same key", async () => {
      await using lease = await client.lock("k", { function: "demo.echo" });
      assert.equal(lease.fullKey, "lock:demo.echo:k");
      await failure(client.call("demo.echo", {}, { lock: "k" }), ContendedError);
      await using _global = await client.lock("k");
    });
  });
}
