// Keeps one lease: extends it until it ends, and watches its lock for a forced release.

import { now, sleep } from "./clock.js";
import type { Connection } from "./connection.js";
import { toWire } from "./duration.js";
import {
  ForbiddenError,
  type ForrstError,
  isProofOfLoss,
  LostAnswerError,
  LostError,
  RejectedError,
} from "./errors.js";
import { type Held, readDate } from "./held.js";
import { backoff, inBackground, jittered } from "./retry.js";
import { type Tenure, type Term, termOf } from "./tenure.js";
import { EXTEND, isObject, WATCH } from "./wire.js";

/** The longest pause before a failed renewal is retried, however long the ttl is. */
const LONGEST_PAUSE = 1_000;

/** A lease that ends sooner is not watched, which saves a short critical section two requests. */
const WATCH_AFTER = 500;

/** How long one request waits for a change. */
const WATCH_WAIT = 30_000;

/** The pause after an answer that says nothing about the lease. */
const UNKNOWN_PAUSE = 1_000;

export interface Keeping {
  connection: Connection;
  held: Held;
  ttl: number;
  tenure: Tenure;
}

/** Sends one request to extend the lease, and returns the term that its answer proves. */
export async function extendOnce(
  { connection, held, ttl, tenure }: Keeping,
  options: { patience: number; fresh?: boolean; unref?: boolean },
): Promise<Term> {
  const args = { key: held.fullKeys[0], owner: held.owner, fence: held.fence, ttl: toWire(ttl) };
  const sent = now();
  const patience = Math.min(options.patience, connection.timeout);
  const answer = await connection.askOnce(EXTEND, args, { ...options, patience, stop: tenure.over });
  return termOf(sent, ttl, ttl, readDate(answer.expires_at));
}

/** The loss that the answer to `extend` or `release` proves. */
export function lossOf(error: ForrstError): LostError {
  return new LostError(`the lease is lost: ${error.message}`, { response: undefined, cause: error });
}

/** Renews the lease until it ends. */
export async function renew(keeping: Keeping): Promise<void> {
  const { ttl, tenure } = keeping;
  const pause = Math.min(ttl / 24, LONGEST_PAUSE);
  let fresh = false;
  while (tenure.isHeld) {
    const isFailing = tenure.lastError !== undefined;
    const left = isFailing ? jittered(pause) : tenure.term.from + ttl / 3 - now();
    await sleep(Math.max(0, left), { stop: tenure.over, unref: true });
    if (!tenure.isHeld) return;
    try {
      // Short enough that several tries are left after one that is never answered.
      tenure.extend(await extendOnce(keeping, { patience: ttl / 6, fresh, unref: true }));
      fresh = false;
    } catch (error) {
      if (isProofOfLoss(error)) tenure.lose(lossOf(error));
      tenure.lastError = error;
      // The other connections of the pool may be dead, too.
      fresh = error instanceof LostAnswerError;
    }
  }
}

/** Watches the lock until the lease ends, to be notified at once if it is ended by force. */
export async function watch({ connection, held, tenure }: Keeping): Promise<void> {
  const stop = tenure.over;
  const pauses = inBackground(Number.POSITIVE_INFINITY);
  let since: unknown;
  let failed = 0;
  let pause = WATCH_AFTER;
  for (;;) {
    await sleep(pause, { stop, unref: true });
    if (!tenure.isHeld) return;
    try {
      const args = { key: held.fullKeys[0], owner: held.owner, wait: toWire(WATCH_WAIT), ...(since !== undefined && { since }) };
      const answer = await connection.askOnce(WATCH, args, { block: WATCH_WAIT, stop, fresh: failed > 0, unref: true });
      const { locked, revision, holders, holder_count: count } = answer;
      const shown = Array.isArray(holders) ? holders : [];
      const isShown = shown.some((holder) => isObject(holder) && holder.fence === held.fence);
      // A server shows at most a hundred holders, and none to a caller that may not see them.
      if (locked === false || (!isShown && count === shown.length)) {
        tenure.lose(new LostError("the lease is lost: the lock is no longer held by it"));
      }
      pause = isShown ? 0 : UNKNOWN_PAUSE;
      since = revision;
      failed = 0;
    } catch (error) {
      // A failure proves nothing; the renewal goes on. Some will not pass.
      if (error instanceof RejectedError || error instanceof ForbiddenError) return;
      failed += 1;
      pause = Math.max(backoff(pauses, failed), (error as ForrstError).retryAfter ?? 0);
    }
  }
}
