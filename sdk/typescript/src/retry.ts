// The policy of retries, and the tries of one request: whether and when it is sent again.

import { now, sleep } from "./clock.js";
import { type Duration, milliseconds } from "./duration.js";
import {
  type ForrstError,
  FunctionError,
  isContended,
  LostAnswerError,
  RateLimitedError,
  UnavailableError,
  UnreachableError,
} from "./errors.js";
import { cancelled } from "./transport/failures.js";

/**
 * How often and for how long a request is tried. The pause before the second try is `firstPause`, twice that before the next, and so on up
 * to `longestPause`; half of each is random. It is at least what the server asks for. Only what was certainly not carried out is retried,
 * or may safely be carried out twice.
 */
export interface RetryOptions {
  /** How many tries there are, including the first; 4 by default. */
  tries?: number;
  /** 100 ms by default. */
  firstPause?: Duration;
  /** 2 s by default. */
  longestPause?: Duration;
  /** How long after the first try another one may begin; 15 s by default. A request that waits for a lock is tried until its wait ends. */
  within?: Duration;
  /**
   * Also retries when another client holds the lock, which is not the default: waiting in the server's queue (`wait`) is fair and faster.
   */
  onContention?: boolean;
}

export interface Retry {
  tries: number;
  firstPause: number;
  longestPause: number;
  within: number;
  onContention: boolean;
}

const DEFAULT: Retry = { tries: 4, firstPause: 100, longestPause: 2_000, within: 15_000, onContention: false };

/** The policy that the options describe; `false` means a single try. */
export function retryOf(options: RetryOptions | false | undefined, base: Retry = DEFAULT): Retry {
  if (options === undefined) return base;
  if (options === false) return { ...base, tries: 1, onContention: false };
  const { tries = base.tries, onContention = base.onContention } = options;
  if (!Number.isInteger(tries) || tries < 1) throw new RangeError(`\`retry.tries\` is ${tries}, which is not a whole number from 1`);
  const span = (name: "firstPause" | "longestPause" | "within") =>
    options[name] === undefined ? base[name] : milliseconds(options[name], `retry.${name}`, 0);
  return { tries, firstPause: span("firstPause"), longestPause: span("longestPause"), within: span("within"), onContention };
}

/** For background work, which is pointless after `time`. */
export function inBackground(time: number): Retry {
  return { tries: Number.POSITIVE_INFINITY, firstPause: 50, longestPause: 1_000, within: time, onContention: false };
}

export interface TryLimits {
  /** Whether the request may be carried out twice. */
  isRepeatable: boolean;
  /** By the clock. */
  deadline?: number | undefined;
  /** Until when a request that waits for a lock is tried, by the clock. */
  waitEnd?: (() => number | undefined) | undefined;
  /** Ends the tries. */
  stop?: AbortSignal | undefined;
  /** Lets the process end during pauses. */
  unref?: boolean | undefined;
}

export class Tries {
  readonly #retry: Retry;
  readonly #limits: TryLimits;
  readonly #started = now();
  #failed = 0;
  #hasLostAnswer = false;
  #isSuspect = false;

  constructor(retry: Retry, limits: TryLimits) {
    this.#retry = retry;
    this.#limits = limits;
  }

  /** Whether an earlier try may have been carried out without an answer. */
  get hasLostAnswer(): boolean {
    return this.#hasLostAnswer;
  }

  /** Whether the last answer was lost, so that the other connections may be dead, too. */
  get isSuspect(): boolean {
    return this.#isSuspect;
  }

  /** Sleeps until the next try, or throws the error if there is none. */
  async after(error: ForrstError): Promise<void> {
    this.#failed += 1;
    const { stop, unref } = this.#limits;
    const pause = this.#pause(error);
    if (pause === undefined || stop?.aborted) throw error;
    if (error.mayHaveRun) this.#hasLostAnswer = true;
    this.#isSuspect = error instanceof LostAnswerError;
    await sleep(pause, { stop, unref });
    if (stop?.aborted) throw cancelled(stop, this.#hasLostAnswer);
  }

  #pause(error: ForrstError): number | undefined {
    if (!this.#mayRepeat(error)) return undefined;
    const { tries, within } = this.#retry;
    const pause = Math.max(backoff(this.#retry, this.#failed), error.retryAfter ?? 0);
    const next = now() + pause;
    const { deadline, waitEnd } = this.#limits;
    if (deadline !== undefined && next >= deadline) return undefined;
    const isWaiting = tries > 1 && !isContended(error) && next < (waitEnd?.() ?? Number.NEGATIVE_INFINITY);
    const isInTime = this.#failed < tries && next - this.#started <= within;
    return isWaiting || isInTime ? pause : undefined;
  }

  #mayRepeat(error: ForrstError): boolean {
    const isWorthIt =
      (isContended(error) && this.#retry.onContention) ||
      error instanceof UnreachableError ||
      error instanceof LostAnswerError ||
      error instanceof UnavailableError ||
      error instanceof RateLimitedError ||
      (error instanceof FunctionError && error.errors.every(({ code }) => RETRYABLE.has(code)));
    return isWorthIt && (this.#limits.isRepeatable || !error.mayHaveRun);
  }
}

/** The codes after which the same request may succeed later. */
const RETRYABLE = new Set([
  "DEADLINE_EXCEEDED",
  "LOCK_ACQUISITION_FAILED",
  "LOCK_TIMEOUT",
  "RATE_LIMITED",
  "INTERNAL_ERROR",
  "UNAVAILABLE",
  "DEPENDENCY_ERROR",
  "FUNCTION_DISABLED",
  "FUNCTION_MAINTENANCE",
  "SERVER_MAINTENANCE",
  "IDEMPOTENCY_PROCESSING",
  "BATCH_TIMEOUT",
]);

/** The pause after so many failed tries: half of it is fixed, the other half random. */
export function backoff({ firstPause, longestPause }: Retry, failed: number): number {
  return jittered(Math.min(firstPause * 2 ** (failed - 1), longestPause));
}

export function jittered(ms: number): number {
  return ms / 2 + (ms / 2) * Math.random();
}
