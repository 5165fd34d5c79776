// Operations on locks by their full keys (`lock:…`), for operators and for leases that are not held by this client.

import type { Connection } from "./connection.js";
import { type Duration, milliseconds, toWire } from "./duration.js";
import { AlreadyReleasedError } from "./errors.js";
import { readDate } from "./held.js";
import { Tries } from "./retry.js";
import { notUnderstood } from "./transport/failures.js";
import { EXTEND, FORCE_RELEASE, isObject, LIST, RELEASE, STATUS, WAITERS, WATCH, WITHDRAW } from "./wire.js";

/** The state of a lock when the server answered. */
export type LockStatus = LockInfo | FreeLock;

/** A lock that no lease holds. If any wait for it, it is reserved for the first one, which still waits for another key. */
export interface FreeLock {
  locked: false;
  fullKey: string;
  waiters: number;
}

/** A lock that is held, and by whom. */
export interface LockInfo {
  locked: true;
  fullKey: string;
  kind: "exclusive" | "shared" | "limit";
  /** How many leases may hold it, if it is a semaphore, and how many more now. */
  limit?: number;
  available?: number;
  /** The leases, the smallest fence first; 100 at most. */
  holders: Holder[];
  holderCount: number;
  waiters: number;
}

/** One lease on a lock. */
export interface Holder {
  /** The owner token; or a hash of it, which only tells owners apart, for callers that may not see it. */
  owner: string;
  fence?: string;
  /** The caller that took it, where the server knows its callers. */
  caller?: string;
  note?: string;
  acquiredAt: Date;
  expiresAt: Date;
  /** In milliseconds. */
  remaining: number;
  /** The keys of a lock on several, as far as the caller may see them. */
  fullKeys?: string[];
}

/** A claim that waits for a lock. */
export interface Waiter {
  /** Its position in the queue; 1 is next. */
  position: number;
  owner: string;
  caller?: string;
  note?: string;
  since: Date;
  until: Date;
}

export interface Page {
  locks: LockInfo[];
  /** Where the next page starts; `null` on the last one. */
  cursor: string | null;
}

export class Locks {
  readonly #connection: Connection;

  /** @internal */
  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Whether a lock is held, and by which leases. */
  async status(fullKey: string): Promise<LockStatus> {
    return readStatus(await this.#connection.ask(STATUS, { key: fullKey }));
  }

  /**
   * The status of a lock as soon as its leases change, with a `revision`. It answers at once unless `since`, the revision of the answer
   * before, is still true, and after `wait` (30 seconds by default) in any case.
   */
  async watch(
    fullKey: string,
    { since, wait = 30_000, owner, signal }: { since?: string; wait?: Duration; owner?: string; signal?: AbortSignal } = {},
  ): Promise<LockStatus & { revision: string }> {
    const block = milliseconds(wait, "wait");
    const args = { key: fullKey, wait: toWire(block), ...(since !== undefined && { since }), ...(owner !== undefined && { owner }) };
    const tries = new Tries(this.#connection.retry, { isRepeatable: true, stop: signal });
    const answer = await this.#connection.ask(WATCH, args, { tries, block, stop: signal });
    return { ...readStatus(answer), revision: String(answer.revision) };
  }

  /** The callers that wait for a lock, the next one first; at most `limit` of them (100 by default, 1000 at most). */
  async waiters(fullKey: string, { limit }: { limit?: number } = {}): Promise<Waiter[]> {
    const { waiters } = await this.#connection.ask(WAITERS, { key: fullKey, ...(limit !== undefined && { limit }) });
    return listOf(waiters).map(readWaiter);
  }

  /** A page of the held locks whose full key starts with `prefix`: at most `limit` of them (100 by default, 1000 at most). */
  async list({ prefix = "", limit, cursor }: { prefix?: string; limit?: number; cursor?: string } = {}): Promise<Page> {
    const args = { prefix, ...(limit !== undefined && { limit }), ...(cursor !== undefined && { cursor }) };
    const answer = await this.#connection.ask(LIST, args);
    const locks = listOf(answer.locks).map(readStatus).filter((status) => status.locked);
    return { locks, cursor: typeof answer.cursor === "string" ? answer.cursor : null };
  }

  /** All held locks whose full key starts with `prefix`, page after page. This is not a snapshot. */
  async *listAll({ prefix = "" }: { prefix?: string } = {}): AsyncGenerator<LockInfo, void, undefined> {
    let cursor: string | null | undefined;
    do {
      const page = await this.list({ prefix, limit: 1000, ...(cursor != null && { cursor }) });
      yield* page.locks;
      cursor = page.cursor;
    } while (cursor !== null);
  }

  /**
   * Releases a lock with its owner token; with a fence, only the lease that has it. Any key of a lock on several will do. It is retried after
   * a lost answer, and succeeds when the server answers that the lease was already released.
   */
  async release(fullKey: string, owner: string, { fence }: { fence?: string } = {}): Promise<void> {
    const tries = new Tries(this.#connection.retry, { isRepeatable: true });
    try {
      await this.#connection.ask(RELEASE, { key: fullKey, owner, ...withFence(fence) }, { tries });
    } catch (error) {
      if (!(error instanceof AlreadyReleasedError && tries.hasLostAnswer)) throw error;
    }
  }

  /** Extends a lease: it ends `ttl` from now, which may also be earlier. A lease that has expired is not revived. */
  async extend(
    fullKey: string,
    owner: string,
    ttl: Duration,
    { fence }: { fence?: string } = {},
  ): Promise<{ expiresAt: Date; fence: string }> {
    const args = { key: fullKey, owner, ttl: toWire(milliseconds(ttl, "ttl")), ...withFence(fence) };
    const answer = await this.#connection.ask(EXTEND, args);
    return { expiresAt: readDate(answer.expires_at), fence: String(answer.fence) };
  }

  /**
   * Ends every lease on a key, of any owner, or only that with `fence`. Returns how many it has ended. Without a fence it is not retried
   * after a lost answer: it could end the lease of the next holder.
   */
  async forceRelease(fullKey: string, { fence }: { fence?: string } = {}): Promise<number> {
    const tries = new Tries(this.#connection.retry, { isRepeatable: fence !== undefined });
    const { leases = 1 } = await this.#connection.ask(FORCE_RELEASE, { key: fullKey, ...withFence(fence) }, { tries });
    return Number(leases);
  }

  /** Withdraws an attempt whose outcome is not known, whatever it was: a lease is released, a waiter leaves the queue. */
  async withdraw(fullKey: string, owner: string, attempt: string): Promise<"held" | "waiting" | "unknown"> {
    const { was } = await this.#connection.ask(WITHDRAW, { key: fullKey, owner, attempt });
    return was === "held" || was === "waiting" ? was : "unknown";
  }
}

function withFence(fence: string | undefined): { fence?: string } {
  return fence === undefined ? {} : { fence };
}

function readStatus(status: Record<string, unknown>): LockStatus {
  const fullKey = String(status.key);
  const waiters = Number(status.waiters ?? 0);
  if (status.locked === false) return { locked: false, fullKey, waiters };
  const { mode, limit, available } = status;
  // A server with only the specification's extension names one holder, and does not count; one that shows no holders has no owner either.
  const first = status.owner === undefined ? [] : [status];
  const holders = (Array.isArray(status.holders) ? listOf(status.holders) : first).map(readHolder);
  return {
    locked: true,
    fullKey,
    kind: limit !== undefined ? "limit" : mode === "shared" ? "shared" : "exclusive",
    ...(limit !== undefined && { limit: Number(limit), available: Number(available ?? 0) }),
    holders,
    holderCount: Number(status.holder_count ?? holders.length),
    waiters,
  };
}

function readHolder(holder: Record<string, unknown>): Holder {
  const { owner, acquired_at, expires_at, ttl_remaining, ttl_remaining_ms, full_keys } = holder;
  return {
    owner: String(owner),
    ...texts(holder, ["fence", "caller", "note"]),
    acquiredAt: readDate(acquired_at),
    expiresAt: readDate(expires_at),
    remaining: Number(ttl_remaining_ms ?? Number(ttl_remaining) * 1_000),
    ...(Array.isArray(full_keys) && { fullKeys: full_keys.map(String) }),
  };
}

function readWaiter(waiter: Record<string, unknown>): Waiter {
  const { position, owner, since, until } = waiter;
  return {
    position: Number(position),
    owner: String(owner),
    ...texts(waiter, ["caller", "note"]),
    since: readDate(since),
    until: readDate(until),
  };
}

/** Those members that are texts. */
function texts<Name extends string>(from: Record<string, unknown>, names: Name[]): { [name in Name]?: string } {
  const there = names.filter((name) => typeof from[name] === "string");
  return Object.fromEntries(there.map((name) => [name, from[name]])) as { [name in Name]?: string };
}

function listOf(value: unknown): Record<string, unknown>[] {
  if (!Array.isArray(value) || !value.every(isObject)) throw notUnderstood("it has no list where one was expected");
  return value;
}
