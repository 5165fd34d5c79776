// Servers that restart, stop answering, want credentials or TLS, or listen on a unix socket; and what is left of a program that ends.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { appendFileSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { describe, test } from "node:test";
import { inspect } from "node:util";
import {
  CancelledError,
  Client,
  ContendedError,
  ForbiddenError,
  LostAnswerError,
  LostError,
  UnauthorizedError,
  UnreachableError,
} from "../src/index.js";
import { failure } from "./support/failure.js";
import { endWithTests, fired, Folder, forrst, Server, until } from "./support/server.js";

describe("servers", { concurrency: 4 }, () => {
  test("a waiter and a lease survive restarts of the server", async () => {
    using folder = new Folder();
    await using server = await Server.start("--store", `embedded:${folder.file("store")}`);
    await using client = new Client(server.url);
    const lease = await client.lock("k", { ttl: "30s" });
    const waiting = client.lock("k", { wait: "4m" });
    for (const signal of ["SIGKILL", "SIGTERM"] as const) {
      await until(async () => (await client.locks.waiters("lock:k")).length === 1, "the waiter");
      await server.stop(signal);
      await failure(new Client(server.url).call("demo.echo"), UnreachableError);
      await server.start();
    }
    assert(lease.isHeld);
    await until(async () => (await client.locks.waiters("lock:k")).length === 1, "the waiter");
    await lease.release();
    const next = await waiting;
    assert(next.fence > lease.fence);
    await next.release();
  });

  test("a server that stops answering means loss at the local end, and lost stays lost", async () => {
    await using server = await Server.start("--store", "memory:");
    await using client = new Client(server.url);
    const lease = await client.lock("k", { ttl: "1s" });
    server.signal("SIGSTOP");
    const loss = await fired(lease.signal);
    assert(loss instanceof LostError, String(loss));
    assert.match(loss.message, /could not be renewed in time: no answer came/);
    server.signal("SIGCONT");
    await client.ping();
    assert(!lease.isHeld);
    assert.throws(() => lease.check(), loss);
    await failure(lease.release(), LostError);
  });

  test("a process that was stopped finds its lease lost when it continues", async () => {
    await using server = await Server.start("--store", "memory:");
    await using client = new Client(server.url);
    const child = program(`
      const lease = await new Client("${server.url}").lock("k", { ttl: "1s" });
      console.log("held");
      const end = setInterval(() => undefined, 1e6);
      lease.signal.addEventListener("abort", () => {
        console.log(lease.signal.reason.name, lease.isHeld);
        clearInterval(end);
      });
    `);
    assert.equal(await child.line(), "held");
    child.process.kill("SIGSTOP");
    await (await client.lock("k", { wait: "1m" })).release();
    child.process.kill("SIGCONT");
    assert.equal(await child.line(), "LostError false");
    assert.equal(await child.ended, 0);
  });

  test("a program ends when its work is done, whether or not it has released its lease", async () => {
    await using server = await Server.start("--store", "memory:");
    await using client = new Client(server.url);
    const released = program(`
      const client = new Client("${server.url}");
      await client.withLock("released", { ttl: "1h", watch: true }, () => new Promise((resolve) => setTimeout(resolve, 1000)));
      await client.call("demo.echo", {}, { lock: "echo", deadline: "1h", signal: new AbortController().signal });
      const waiting = client.lock("released", { signal: AbortSignal.abort() });
      await waiting.catch(() => undefined);
      // What keeps the process alive.
      console.log(process.getActiveResourcesInfo().filter((name) => /Timeout|TCP/.test(name)).join());
    `);
    assert.equal(await released.line(), "");
    assert.equal(await released.ended, 0);
    assert(!(await client.locks.status("lock:released")).locked);
    const forgotten = program(`
      await new Client("${server.url}").lock("forgotten", { ttl: "1h", watch: true });
      await new Promise((resolve) => setTimeout(resolve, 1000));
    `);
    assert.equal(await forgotten.ended, 0);
    assert((await client.locks.status("lock:forgotten")).locked);
  });

  test("an API key is sent, and shown nowhere", async () => {
    using folder = new Folder();
    const keys = folder.file("keys.toml");
    const newKey = (name: string, ...more: string[]) => {
      const { key, toml } = JSON.parse(forrst("key", "new", "--json", "--name", name, "--role", "call", ...more));
      appendFileSync(keys, `${toml}\n`);
      return key as string;
    };
    const apiKey = newKey("worker", "--locks", "lock:mine*");
    await using server = await Server.start("--store", "memory:", "--auth-file", keys);
    await using client = await Client.connect(server.url, { apiKey, watch: true });
    const lease = await client.lock("mine", { ttl: "1h" });
    const refused = await failure(client.lock("yours"), ForbiddenError);
    const withoutKey = await failure(new Client(server.url).call("demo.echo"), UnauthorizedError);
    assert.equal(withoutKey.code, "UNAUTHORIZED");
    for (const shown of [client, lease, refused, refused.response]) {
      assert(!inspect(shown, { depth: 20, showHidden: true }).includes(apiKey));
    }
    // It may not observe locks in general, but watch its own lease.
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    assert(lease.isHeld);
    await lease.release();
  });

  test("TLS trusts the given authority, and sends the client's certificate", async () => {
    using folder = new Folder();
    const openssl = (...args: string[]) => execFileSync("openssl", args, { cwd: folder.path, stdio: "pipe" });
    const certificate = (name: string, extensions: string) => {
      openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", `/CN=${name}`);
      writeFileSync(folder.file(`${name}.ext`), extensions);
      openssl("x509", "-req", "-in", `${name}.csr`, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", `${name}.ext`, "-out", `${name}.pem`);
    };
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test");
    certificate("server", "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n");
    certificate("worker", "extendedKeyUsage=clientAuth\n");
    const read = (name: string) => readFileSync(folder.file(name));
    const files = ["--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem"];
    const options = files.map((option) => (option.startsWith("--") ? option : folder.file(option)));
    await using server = await Server.start("--store", "memory:", ...options);
    const url = server.url.replace(/^http:/, "https:");
    const tls = { ca: read("ca.pem"), cert: read("worker.pem"), key: read("worker.key") };
    await using client = new Client(url, { tls });
    await client.withLock("k", ({ isHeld }) => assert(isHeld));
    await failure(new Client(url, { retry: false }).ping(), UnreachableError);
    const anonymous = new Client(url, { tls: { ca: tls.ca }, retry: false });
    await assert.rejects(anonymous.ping(), (error) => error instanceof LostAnswerError || error instanceof UnreachableError);
  });

  test("a unix socket carries all requests over one connection", async () => {
    using folder = new Folder();
    const socket = folder.file("s.sock");
    await using server = await Server.start("--store", "memory:", "--unix", socket);
    await using client = await Client.connect(`unix:${socket}`, { watch: true });
    const text = "ä".repeat(100_000);
    const echoes = await Promise.all(Array.from({ length: 20 }, (_, n) => client.call("demo.echo", { n, text })));
    assert.deepEqual(echoes.map((echo) => (echo as { n: number }).n), [...Array(20).keys()]);
    const lease = await client.lock("k", { ttl: "1h" });
    const controller = new AbortController();
    const waiting = failure(client.lock("k", { wait: "4m", signal: controller.signal }), CancelledError);
    const queue = () => client.locks.waiters("lock:k");
    await until(async () => (await queue()).length === 1, "the waiter");
    controller.abort();
    await waiting;
    assert(await client.settle("60s"));
    assert.deepEqual(await queue(), []);
    await failure(client.lock("k"), ContendedError);
    await server.stop();
    await failure(new Client(`unix:${socket}`, { retry: false }).call("demo.echo"), UnreachableError);
    await server.start();
    await client.ping();
    await failure(lease.release(), LostError);
    await failure(new Client(`unix:${folder.file("none")}`, { retry: false }).ping(), UnreachableError);
  });

  test("a program that uses a unix socket ends when its work is done", async () => {
    using folder = new Folder();
    const socket = folder.file("s.sock");
    await using _server = await Server.start("--store", "memory:", "--unix", socket);
    const child = program(`await (await new Client("unix:${socket}").lock("k", { watch: true })).release();`);
    assert.equal(await child.ended, 0);
  });

  test("the time to connect is limited, and so is that of an answer", async () => {
    const silent = createServer(() => undefined);
    await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
    const { port } = silent.address() as { port: number };
    const client = new Client(`http://127.0.0.1:${port}`, { timeout: "100ms", retry: false });
    await failure(client.ping(), LostAnswerError);
    // The server accepts the connection, but never answers the handshake.
    const secure = new Client(`https://127.0.0.1:${port}`, { connectTimeout: "100ms", retry: false });
    await failure(secure.ping(), UnreachableError);
    silent.closeAllConnections();
    silent.close();
  });
});

/** Runs a program of its own, which can use the client. */
function program(text: string): { process: ReturnType<typeof spawn>; line: () => Promise<string>; ended: Promise<number | null> } {
  const client = new URL("../src/index.js", import.meta.url).href;
  const source = `import { Client } from ${JSON.stringify(client)};\n${text}`;
  const child = spawn(process.execPath, ["--input-type=module", "--eval", source], { stdio: ["ignore", "pipe", "inherit"] });
  endWithTests(child);
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const ended = new Promise<number | null>((resolve) => child.on("exit", resolve));
  return { process: child, line: async () => (await lines.next()).value ?? "", ended };
}
