// The clock that leases are counted by: monotonic, and including the time that the machine sleeps, as the server counts it.

import { uptime } from "node:os";

/** Below this, the difference between the two clocks is not sleep: the uptime has a resolution of 10 ms. */
const NOISE = 50;

/** How late an alarm may ring after the machine has slept: timers do not count that time. */
const LONGEST_TIMER = 1_000;

// On Linux the monotonic clock stops while the machine sleeps, and the uptime goes on. Elsewhere the monotonic clock goes on.
const difference = process.platform === "linux" ? measuredDifference() : undefined;
let slept = 0;

/** Milliseconds since some moment in the past. */
export function now(): number {
  if (difference !== undefined) {
    const measured = measuredDifference();
    if (measured !== undefined && measured - difference > slept + NOISE) slept = measured - difference;
  }
  return performance.now() + slept;
}

/** `undefined` where there is no uptime, or if the process was interrupted between reading the two clocks. */
function measuredDifference(): number | undefined {
  try {
    const before = performance.now();
    const measured = uptime() * 1_000 - before;
    return performance.now() - before < NOISE / 5 ? measured : undefined;
  } catch {
    return undefined;
  }
}

/** Calls `ring` once the clock has reached `due()`, which may move. It does not keep the process alive. Returns how to stop it. */
export function alarm(due: () => number, ring: () => void): () => void {
  let timer: NodeJS.Timeout;
  const check = () => {
    const left = due() - now();
    if (left <= 0) return ring();
    timer = setTimeout(check, Math.min(Math.ceil(left), LONGEST_TIMER)).unref();
  };
  check();
  return () => clearTimeout(timer);
}

export interface SleepOptions {
  /** Ends the sleep early. */
  stop?: AbortSignal | undefined;
  /** Lets the process end meanwhile. */
  unref?: boolean | undefined;
}

/** Sleeps; an aborted `stop` ends the sleep early, without an error. */
export function sleep(ms: number, { stop, unref }: SleepOptions = {}): Promise<void> {
  return new Promise((resolve) => {
    if (stop?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      stop?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, limited(ms));
    if (unref) timer.unref();
    stop?.addEventListener("abort", end, { once: true });
  });
}

/** Longer timers would fire at once. */
export function limited(ms: number): number {
  return Math.min(Math.ceil(ms), 2 ** 31 - 1);
}
