// Real servers for the tests: the binary that FORRST_BIN names, and redis-server, each in a temporary folder.

import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** Long enough for anything on a busy machine. */
export const LONG = 60_000;

export function binary(): string {
  const path = process.env.FORRST_BIN;
  assert(path, "FORRST_BIN has to name the binary of the server");
  return path;
}

const children = new Set<ChildProcess>();
process.once("exit", () => children.forEach((child) => child.kill("SIGKILL")));

/** Makes sure that a process does not outlive the tests. */
export function endWithTests(child: ChildProcess): void {
  children.add(child);
  child.once("exit", () => children.delete(child));
}

export const forrst = (...args: string[]): string => execFileSync(binary(), args, { encoding: "utf8" });

export class Folder implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), "forrst-ts-"));

  file(name: string): string {
    return join(this.path, name);
  }

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true, force: true });
  }
}

export class Server implements AsyncDisposable {
  #process: ChildProcess;
  readonly url: string;
  readonly #args: string[];

  private constructor(process: ChildProcess, url: string, args: string[]) {
    this.#process = process;
    this.url = url;
    this.#args = args;
  }

  static async start(...args: string[]): Promise<Server> {
    const [process, url] = await launch(["--listen", "127.0.0.1:0", ...args]);
    return new Server(process, url, args);
  }

  signal(signal: NodeJS.Signals): void {
    this.#process.kill(signal);
  }

  async stop(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    await ended(this.#process, signal);
  }

  /** Starts it again, on the same port. */
  async start(): Promise<void> {
    const { host } = new URL(this.url);
    [this.#process] = await launch(["--listen", host, ...this.#args]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}

async function launch(args: string[]): Promise<[ChildProcess, string]> {
  const child = spawn(binary(), ["serve", "--demo", "--drain-timeout", "1s", ...args], { stdio: ["ignore", "pipe", "pipe"] });
  endWithTests(child);
  let errors = "";
  child.stderr.on("data", (chunk) => (errors += chunk));
  const url = await new Promise<string>((resolve, reject) => {
    createInterface(child.stdout).on("line", (line) => {
      const found = /^ +http +(\S+)\/forrst/.exec(line);
      if (found) resolve(found[1]!);
    });
    child.on("close", (code) => reject(new Error(`the server ended with ${code}: ${errors}`)));
    child.on("error", reject);
  });
  return [child, url];
}

async function ended(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = new Promise((resolve) => child.once("exit", resolve));
  child.kill(signal);
  // A stopped process ends only when it continues.
  child.kill("SIGCONT");
  await exit;
}

export class Redis implements AsyncDisposable {
  readonly #process: ChildProcess;
  readonly #folder: Folder;
  readonly url: string;

  private constructor(process: ChildProcess, folder: Folder, url: string) {
    this.#process = process;
    this.#folder = folder;
    this.url = url;
  }

  static async start(): Promise<Redis> {
    const folder = new Folder();
    const port = await freePort();
    const options = ["--port", String(port), "--bind", "127.0.0.1", "--dir", folder.path, "--save", "", "--appendonly", "yes"];
    const child = spawn("redis-server", options, { stdio: "ignore" });
    endWithTests(child);
    const failed = new Promise<never>((_, reject) => {
      child.on("error", reject);
      child.on("exit", (code) => reject(new Error(`redis-server ended with ${code}`)));
    });
    failed.catch(() => undefined);
    await Promise.race([until(() => accepts(port)), failed]);
    return new Redis(child, folder, `redis://127.0.0.1:${port}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await ended(this.#process, "SIGKILL");
    this.#folder[Symbol.dispose]();
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => socket.end(() => resolve(true)));
    socket.on("error", () => resolve(false));
  });
}

/** Waits until a condition holds. */
export async function until(condition: () => Promise<boolean> | boolean, what = "a condition"): Promise<void> {
  const end = performance.now() + LONG;
  while (!(await condition())) {
    assert(performance.now() < end, `${what} did not come true`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** The reason of a signal, once it fires. */
export function fired(signal: AbortSignal): Promise<unknown> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return resolve(signal.reason);
    // Keeps the process alive, which a lease does not.
    const timer = setTimeout(() => reject(new Error("the signal did not fire")), LONG);
    signal.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve(signal.reason);
      },
      { once: true },
    );
  });
}
