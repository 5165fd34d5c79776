// Acquires locks for work that runs here. An acquisition may take several requests, some of whose answers get lost. The server recognises
// them by owner and attempt, so that together they result in one lease. An acquisition that is given up is withdrawn.

import { randomUUID } from "node:crypto";
import { now } from "./clock.js";
import type { Connection } from "./connection.js";
import { type Duration, milliseconds, toWire } from "./duration.js";
import {
  CancelledError,
  DeadlineExceededError,
  ForrstError,
  isContended,
  LostAnswerError,
  NotUnderstoodError,
  RateLimitedError,
  UnreachableError,
} from "./errors.js";
import { type Grant, readGrant } from "./held.js";
import { firstFullKey, type Keys, type Kind, wireKeys } from "./keys.js";
import { Lease } from "./lease.js";
import { type RetryOptions, retryOf, Tries } from "./retry.js";
import { cancelled } from "./transport/failures.js";
import { Wait } from "./wait.js";
import { ACQUIRE } from "./wire.js";
import { withdraw } from "./withdrawal.js";

export interface LockOptions extends Kind {
  /** How long the lease lasts after each renewal; 30 seconds by default. */
  ttl?: Duration;
  /** How long to wait in the queue when another client holds the lock. By default, it does not wait. */
  wait?: Duration;
  /** How long the acquisition may take, retries and pauses included. */
  deadline?: Duration;
  /** Gives the acquisition up, with a `CancelledError`. It has no effect on a lock that is held. */
  signal?: AbortSignal;
  /** The token that the lock is released with; random by default. */
  owner?: string;
  /** Who or what holds the lock, for people who inspect it. It must not contain secrets. */
  note?: string;
  /** Takes the lock that callers of this function share (`lock:{function}:{key}`) instead of the global one (`lock:{key}`). */
  function?: string;
  /**
   * Names this acquisition, so that it can be repeated after a crash: the same owner with the same attempt gets the same lease, not a second
   * one. Random by default, which is enough for the retries of this client.
   */
  attempt?: string;
  /** How the acquisition is retried; by default, as the client says. */
  retry?: RetryOptions | false;
  /**
   * Also watches the lock, so that a forced release is noticed at once and not at the next renewal; by default, as the client says. Over HTTP
   * that takes one more connection for each lease that is held for longer than half a second.
   */
  watch?: boolean;
}

export const DEFAULT_TTL = 30_000;

/** The arguments of `acquire`, except for how long it waits. */
export interface Claim {
  arguments: { owner: string; attempt: string; [name: string]: unknown };
  fullKey: string;
  ttl: number;
}

/** Takes a lock, and keeps it by renewing it. */
export async function acquire(connection: Connection, keys: Keys, options: LockOptions): Promise<Lease> {
  const { owner = randomUUID(), attempt = randomUUID(), note, function: fn, signal, watch = connection.watch } = options;
  const ttl = options.ttl === undefined ? DEFAULT_TTL : milliseconds(options.ttl, "ttl");
  const claim = {
    arguments: {
      ...wireKeys(keys, options),
      ttl: toWire(ttl),
      owner,
      attempt,
      ...(note !== undefined && { note }),
      ...(fn !== undefined && { function: fn }),
    },
    fullKey: firstFullKey(keys, fn),
    ttl,
  };
  const granted = await new Acquisition(connection, claim, options).run();
  const lease = await Lease.begin(connection, { ...granted, ttl, watch });
  if (signal?.aborted) {
    connection.background.run(() => lease.release());
    throw cancelled(signal, true);
  }
  return lease;
}

class Acquisition {
  readonly #connection: Connection;
  readonly #claim: Claim;
  readonly #deadline: number | undefined;
  readonly #stop: AbortSignal | undefined;
  readonly #wait: Wait;
  readonly #tries: Tries;
  /** Just before the first request was sent that may have been granted: the next try may get that lease. */
  #since: number | undefined;
  /** Whether the lock may be held or waited for without a caller that knows, so that it has to be withdrawn. */
  #mayBeGranted = false;

  constructor(connection: Connection, claim: Claim, { wait, deadline, signal, retry }: LockOptions) {
    this.#connection = connection;
    this.#claim = claim;
    this.#deadline = deadline === undefined ? undefined : now() + milliseconds(deadline, "deadline");
    this.#stop = signal;
    this.#wait = new Wait(connection, wait === undefined ? undefined : milliseconds(wait, "wait", 0));
    this.#tries = new Tries(retryOf(retry, connection.retry), {
      isRepeatable: true,
      deadline: this.#deadline,
      waitEnd: () => this.#wait.end,
      stop: signal,
    });
  }

  async run(): Promise<{ grant: Grant; since: number; sent: number }> {
    try {
      for (;;) {
        try {
          return await this.#try();
        } catch (error) {
          if (!(error instanceof ForrstError)) throw error;
          if (await this.#wait.goesOnAfter(error, { deadline: this.#deadline, stop: this.#stop })) continue;
          await this.#tries.after(error);
          if (isContended(error)) this.#wait.restart();
        }
      }
    } catch (error) {
      if (this.#mayBeGranted) this.#connection.background.run(() => withdraw(this.#connection, this.#claim));
      throw error;
    }
  }

  async #try(): Promise<{ grant: Grant; since: number; sent: number }> {
    const block = this.#wait.next();
    const args = { ...this.#claim.arguments, ...(block !== undefined && { block: toWire(block) }) };
    const sent = now();
    try {
      const result = await this.#connection.askOnce(ACQUIRE, args, {
        block,
        deadline: this.#deadline,
        stop: this.#stop,
        fresh: this.#tries.isSuspect,
      });
      return { grant: readGrant(result), since: this.#since ?? sent, sent };
    } catch (error) {
      if (error instanceof ForrstError) this.#note(error, sent);
      throw error;
    }
  }

  /** What the failure of a try says about the tries so far. */
  #note(error: ForrstError, sent: number): void {
    if (isContended(error)) {
      // If an earlier try had been granted, this one would have got its lease.
      this.#since = undefined;
      this.#mayBeGranted = false;
      return;
    }
    const isWithoutAnswer =
      error instanceof LostAnswerError ||
      error instanceof NotUnderstoodError ||
      ((error instanceof DeadlineExceededError || error instanceof CancelledError) && !error.response);
    // A try that did not reach the store says nothing about the earlier ones.
    if (error instanceof UnreachableError || error instanceof RateLimitedError || (isWithoutAnswer && !error.mayHaveRun)) return;
    // After any other answer the server rolls the grant back itself, but perhaps not before the next try.
    this.#since ??= sent;
    if (isWithoutAnswer) this.#mayBeGranted = true;
  }
}
