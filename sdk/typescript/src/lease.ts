// Leases that this process holds: renewed in the background, and lost at the latest at a local end, before the server gives the lock to
// another client.

import { now } from "./clock.js";
import type { Connection } from "./connection.js";
import { ForrstError, AlreadyReleasedError, isProofOfLoss, LostError } from "./errors.js";
import type { Grant, Held } from "./held.js";
import { extendOnce, type Keeping, lossOf, renew, watch } from "./renewal.js";
import { inBackground, Tries } from "./retry.js";
import { Tenure, termOf } from "./tenure.js";
import { RELEASE } from "./wire.js";

/** How long a release in the background is retried at least. */
const MIN_RELEASE_TIME = 2_000;

export interface Granted {
  grant: Grant;
  /** Just before the first request was sent that may have been granted. */
  since: number;
  /** Just before the request was sent that was answered. */
  sent: number;
  ttl: number;
  watch: boolean;
}

/**
 * A lock that is held here and renews itself, until it is released.
 *
 * This machine's monotonic clock alone decides whether it is still held: a lease ends here no later than on the server, because its time
 * counts from before the request was sent. A lost lease stays lost. A process that was stopped for too long finds its lease lost when it
 * continues.
 *
 * A lease does not keep the process alive. One that is never released is renewed for as long as the process lives: use `await using` or
 * `withLock`.
 */
export class Lease implements Held, AsyncDisposable {
  readonly #connection: Connection;
  readonly #held: Held;
  readonly #tenure: Tenure;
  #releasing: Promise<void> | undefined;

  private constructor(connection: Connection, held: Held, tenure: Tenure) {
    this.#connection = connection;
    this.#held = held;
    this.#tenure = tenure;
  }

  /** @internal Makes sure that the granted lock is still held, and begins to renew it. */
  static async begin(connection: Connection, { grant, since, sent, ttl, watch: isWatched }: Granted): Promise<Lease> {
    const { span, ...held } = grant;
    const term = span === undefined ? termOf(since, ttl, ttl, held.expiresAt) : termOf(sent, span, ttl, held.expiresAt);
    const tenure = new Tenure(term);
    const lease = new Lease(connection, held, tenure);
    const keeping = { connection, held, ttl, tenure };
    await lease.#ensureFresh(keeping);
    tenure.begin();
    void renew(keeping);
    if (isWatched) void watch(keeping);
    return lease;
  }

  /**
   * Renews the lease unless half of it is known to be left: it may have been granted to an earlier try, or during a wait by a server that
   * does not say what is left.
   */
  async #ensureFresh(keeping: Keeping): Promise<void> {
    // It may have ended here by now, and still be there to be extended.
    if (this.#tenure.term.until - now() > keeping.ttl / 2) return;
    const tries = new Tries(this.#connection.retry, { isRepeatable: true });
    for (;;) {
      try {
        this.#tenure.setFirst(await extendOnce(keeping, { patience: keeping.ttl, fresh: tries.isSuspect }));
        return;
      } catch (error) {
        if (!(error instanceof ForrstError)) throw error;
        if (isProofOfLoss(error)) throw lossOf(error);
        try {
          await tries.after(error);
        } catch {
          // What is left may be enough: the renewal in the background retries.
          if (!this.#tenure.hasExpired) return;
          this.#releaseInBackground();
          throw lossOf(error);
        }
      }
    }
  }

  /** The first key that was requested. */
  get key(): string {
    return this.#held.keys[0]!;
  }

  get keys(): readonly string[] {
    return this.#held.keys;
  }

  /** The name of the lock in the store, such as `lock:orders`; the first, for a lock on several keys. */
  get fullKey(): string {
    return this.#held.fullKeys[0]!;
  }

  get fullKeys(): readonly string[] {
    return this.#held.fullKeys;
  }

  get owner(): string {
    return this.#held.owner;
  }

  /** The fencing token, for the resource that the lock protects: 15 digits, which sort as text. Renewals do not change it. */
  get fence(): string {
    return this.#held.fence;
  }

  /** When it ends by the server's clock, as of the last renewal. */
  get expiresAt(): Date {
    return this.#tenure.term.expiresAt;
  }

  /** For how many milliseconds it is certainly held, unless it is renewed. */
  get remaining(): number {
    const { loss, term } = this.#tenure;
    return loss ? 0 : Math.max(0, term.until - now());
  }

  /** Fires when the lease is lost; its reason is the `LostError`. It does not fire once the lease was released or kept. */
  get signal(): AbortSignal {
    return this.#tenure.lost;
  }

  /** Whether it is held, by the clock at this moment. */
  get isHeld(): boolean {
    return this.#tenure.isHeld;
  }

  /** Throws a `LostError` unless it is held: for work that cannot be interrupted by the signal. */
  check(): void {
    if (!this.isHeld) throw this.#tenure.loss ?? new LostError("the lease was released");
  }

  /**
   * Releases the lock. It is retried, because a release may safely be repeated; without an answer, it goes on in the background until the
   * lease has expired anyway. A second call sends nothing, and returns the same.
   *
   * Fails with a `LostError` if the lease was lost before: another client may have held the lock since.
   */
  release(): Promise<void> {
    this.#releasing ??= this.#release();
    return this.#releasing;
  }

  async #release(): Promise<void> {
    const loss = this.#tenure.loss;
    if (loss) throw loss;
    this.#tenure.end();
    // After that the lease has ended, and there is nothing to release.
    const tries = new Tries(this.#connection.retry, { isRepeatable: true, deadline: this.#tenure.term.until });
    try {
      await this.#send(tries, this.remaining);
    } catch (error) {
      if (!isProofOfLoss(error)) {
        this.#releaseInBackground();
        throw error;
      }
      // A lease that cannot have expired yet was ended by an earlier try, whose answer was lost.
      const wasDoneBefore =
        tries.hasLostAnswer && (!this.#tenure.hasExpired || error instanceof AlreadyReleasedError);
      if (!wasDoneBefore) throw lossOf(error);
    }
  }

  #releaseInBackground(): void {
    this.#tenure.end();
    // A lease that has ended here may last a little longer on the server.
    const time = Math.max(this.remaining, MIN_RELEASE_TIME);
    const tries = this.#connection.triesInBackground(inBackground(time), time);
    this.#connection.background.run(() => this.#send(tries, time));
  }

  async #send(tries: Tries, time: number): Promise<void> {
    const { fullKeys, owner, fence } = this.#held;
    const patience = Math.max(1, Math.min(this.#connection.timeout, time));
    await this.#connection.ask(RELEASE, { key: fullKeys[0], owner, fence }, { tries, patience });
  }

  /** Stops the renewal without releasing the lock: it ends when it expires, or is released with its owner token by `locks.release`. */
  keep(): Held {
    this.check();
    const kept = { ...this.#held, expiresAt: this.expiresAt };
    this.#tenure.end();
    this.#releasing = Promise.resolve();
    return kept;
  }

  /** Releases the lock, for `await using`, unless `release` or `keep` was called. */
  async [Symbol.asyncDispose](): Promise<void> {
    // Who has released it knows the outcome.
    if (this.#releasing) await this.#releasing.catch(() => undefined);
    else await this.release();
  }
}
