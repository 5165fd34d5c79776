// Calls of functions, which run on the server, and how their callers cancel them there.

import { randomUUID } from "node:crypto";
import { now, sleep } from "./clock.js";
import type { Connection } from "./connection.js";
import { type Duration, milliseconds, toWire } from "./duration.js";
import { ForrstError, isContended } from "./errors.js";
import { type Keys, type Kind, wireKeys } from "./keys.js";
import { DEFAULT_TTL } from "./acquire.js";
import { type RetryOptions, retryOf, Tries } from "./retry.js";
import { cancelled } from "./transport/failures.js";
import { Wait } from "./wait.js";
import { CANCEL, CANCELLATION_URN, type Extension, LOCK_URN, type Response } from "./wire.js";

/** The lock that a function runs under. Without the lock, the function does not run. */
export interface FunctionLock extends Kind {
  /** One key, or several: all of them or none. */
  key: Keys;
  /** How long the lock is held at most, unless it is renewed; 30 seconds by default. */
  ttl?: Duration;
  /** How long to wait in the queue when another client holds the lock. By default, it does not wait. */
  wait?: Duration;
  /** Shares the lock with the callers of all functions (`lock:{key}` instead of `lock:{function}:{key}`). */
  global?: boolean;
  /** The token that the lock is released with; random by default. */
  owner?: string;
  /** Who or what holds the lock, for people who inspect it. It must not contain secrets. */
  note?: string;
  /** Keeps the lock after the function has ended, until its owner releases it or it expires. */
  keep?: boolean;
  /** Lets the server extend the lock while the function runs. */
  renew?: boolean;
}

export interface CallOptions {
  /** The lock to run under: a key, or a key with options. */
  lock?: string | FunctionLock;
  /** How long the call may take, retries and pauses included. The server receives what is left, and ends the call then. */
  deadline?: Duration;
  /**
   * Cancels the call, with a `CancelledError`: one that waits for its lock leaves the queue, and a function that runs is notified, and its
   * lock is released when it has. A call with a signal costs the server's store two more steps.
   */
  signal?: AbortSignal;
  /** Declares that the function may safely run twice, so that the call is also retried when its answer was lost. */
  idempotent?: boolean;
  version?: string;
  context?: object;
  /** Extensions that this client has no option for. */
  extensions?: Extension[];
  /** How the call is retried, where that is safe; by default, as the client says. */
  retry?: RetryOptions | false;
}

/** For how long a call that was just sent may be unknown to the server. */
const UNKNOWN_FOR = 2_000;
const UNKNOWN_PAUSE = 20;

/** Sends a call, and returns the whole answer. */
export async function respond(connection: Connection, fn: string, args: object, options: CallOptions): Promise<Response> {
  const { signal, version, context, extensions = [], retry, idempotent: isRepeatable = false } = options;
  const lock = typeof options.lock === "string" ? { key: options.lock } : options.lock;
  const lockOptions = lock && wireLock(lock);
  const deadline = options.deadline === undefined ? undefined : now() + milliseconds(options.deadline, "deadline");
  const wait = new Wait(connection, lock?.wait === undefined ? undefined : milliseconds(lock.wait, "lock.wait", 0));
  const limits = { deadline, stop: signal };
  const tries = new Tries(retryOf(retry, connection.retry), { ...limits, isRepeatable, waitEnd: () => wait.end });
  const cancellation = signal && new Cancellation(connection, signal);
  for (;;) {
    const block = wait.next();
    const all = [...extensions];
    if (lockOptions) all.push({ urn: LOCK_URN, options: { ...lockOptions, ...(block !== undefined && { block: toWire(block) }) } });
    const message = { function: fn, version, arguments: args, context };
    const send = (more: Extension[], stop?: AbortSignal) =>
      connection.exchange({ ...message, extensions: [...all, ...more] }, { block, deadline, stop, fresh: tries.isSuspect });
    try {
      return cancellation ? await cancellation.during(send) : await send([]);
    } catch (error) {
      if (!(error instanceof ForrstError)) throw error;
      if (await wait.goesOnAfter(error, limits)) continue;
      await tries.after(error).catch((last: unknown) => {
        if (signal?.aborted && tries.hasLostAnswer) cancellation?.cancelLost();
        throw last;
      });
      if (isContended(error)) wait.restart();
    }
  }
}

function wireLock(lock: FunctionLock): object {
  const { key, ttl, global: isGlobal = false, owner, note, keep = false, renew = false } = lock;
  return {
    ...wireKeys(key, lock),
    ttl: toWire(ttl === undefined ? DEFAULT_TTL : milliseconds(ttl, "lock.ttl")),
    scope: isGlobal ? "global" : "function",
    auto_release: !keep,
    renew,
    ...(owner !== undefined && { owner }),
    ...(note !== undefined && { note }),
  };
}

/** Cancels the tries of one call on the server when its caller's signal fires. */
class Cancellation {
  readonly #connection: Connection;
  readonly #signal: AbortSignal;
  readonly #name = randomUUID();
  #tries = 0;
  /** How many tries the server was asked to cancel. */
  #asked = 0;

  constructor(connection: Connection, signal: AbortSignal) {
    this.#connection = connection;
    this.#signal = signal;
  }

  /** Sends a try, with a token of its own: an earlier one may still be under way on the server. */
  async during(send: (extensions: Extension[], stop: AbortSignal) => Promise<Response>): Promise<Response> {
    if (this.#signal.aborted) throw cancelled(this.#signal, this.#tries > 0);
    this.#tries += 1;
    const giveUp = new AbortController();
    const cancel = () => {
      this.#cancelUntil(this.#tries - 1);
      this.#asked = this.#tries;
      this.#connection.background.run(() => this.#cancel(giveUp));
    };
    this.#signal.addEventListener("abort", cancel, { once: true });
    try {
      return await send([{ urn: CANCELLATION_URN, options: { token: this.#token(this.#tries) } }], giveUp.signal);
    } catch (error) {
      // The answer may have been faster than that to the cancellation.
      throw giveUp.signal.aborted && !(error as ForrstError).response ? cancelled(this.#signal, true) : error;
    } finally {
      this.#signal.removeEventListener("abort", cancel);
      giveUp.abort();
    }
  }

  /** Asks the server to cancel the tries whose answers were lost, so that nothing else knows how they end. */
  cancelLost(): void {
    this.#cancelUntil(this.#tries);
  }

  #cancelUntil(last: number): void {
    for (; this.#asked < last; this.#asked += 1) {
      const token = this.#token(this.#asked + 1);
      this.#connection.background.run(() => this.#connection.ask(CANCEL, { token }));
    }
  }

  /**
   * Asks the server to cancel the try under way, and gives it up once that is accepted. If it was too late for that, the answer of the call
   * is on its way.
   */
  async #cancel(giveUp: AbortController): Promise<void> {
    const token = this.#token(this.#tries);
    const until = now() + UNKNOWN_FOR;
    while (!giveUp.signal.aborted) {
      try {
        await this.#connection.ask(CANCEL, { token });
        return giveUp.abort();
      } catch (error) {
        const code = error instanceof ForrstError ? error.code : undefined;
        if (code === "CANCELLATION_TOO_LATE") return;
        // The cancellation may have overtaken the call.
        if (code !== "CANCELLATION_TOKEN_UNKNOWN" || now() > until) return giveUp.abort();
        await sleep(UNKNOWN_PAUSE, { stop: giveUp.signal });
      }
    }
  }

  #token(number: number): string {
    return `${this.#name}.${number}`;
  }
}
