// The state of one lease, from its grant to its end: until when it is held here, and whether it was lost or given back.

import { alarm, now } from "./clock.js";
import { LostError } from "./errors.js";

/** For how long a lease is certainly held, by the clock. */
export interface Term {
  /** When its time on the server begins at the earliest. */
  from: number;
  until: number;
  /** By the server's clock. */
  expiresAt: Date;
}

/** The term of a lease that ends `span` after the request was sent, at the earliest. */
export function termOf(sent: number, span: number, ttl: number, expiresAt: Date): Term {
  return { from: sent + span - ttl, until: sent + span - margin(span), expiresAt };
}

/**
 * How much earlier a lease ends here than on the server: the clocks of two machines run at different rates, and stores count whole
 * milliseconds.
 */
function margin(span: number): number {
  return span / 100 + 2;
}

/** It ends once: a lost lease stays lost. */
export class Tenure {
  #phase: "held" | "lost" | "ended" = "held";
  #term: Term;
  #loss: LostError | undefined;
  #stopAlarm: (() => void) | undefined;
  /** Fires on loss. */
  readonly #lost = new AbortController();
  /** Fires when the lease needs no renewal any more, whatever the reason. */
  readonly #over = new AbortController();
  /** The error of the last try to renew it. */
  lastError: unknown;

  constructor(term: Term) {
    this.#term = term;
  }

  get term(): Term {
    return this.#term;
  }

  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  get over(): AbortSignal {
    return this.#over.signal;
  }

  /** Reads the clock: a timer may be late. */
  get isHeld(): boolean {
    if (this.#phase === "held" && this.hasExpired) {
      const why = this.lastError instanceof Error ? `: ${this.lastError.message}` : "";
      this.lose(new LostError(`the lease is lost: it could not be renewed in time${why}`, { cause: this.lastError }));
    }
    return this.#phase === "held";
  }

  /** Whether its time is over, also if it was given back before. */
  get hasExpired(): boolean {
    return now() >= this.#term.until;
  }

  /** Why it is lost, if it is. */
  get loss(): LostError | undefined {
    void this.isHeld;
    return this.#loss;
  }

  /** Begins to watch the clock. */
  begin(): void {
    this.#stopAlarm = alarm(
      () => this.#term.until,
      () => void this.isHeld,
    );
  }

  /** Replaces the term of a lease that was not handed to its caller yet, even if it has ended. */
  setFirst(term: Term): void {
    this.#term = term;
  }

  /** Moves the end, unless it has passed: a late answer changes nothing. */
  extend(term: Term): void {
    if (!this.isHeld) return;
    this.#term = term;
    this.lastError = undefined;
  }

  lose(loss: LostError): void {
    if (this.#phase !== "held") return;
    this.#phase = "lost";
    this.#loss = loss;
    this.#stop();
    this.#lost.abort(loss);
  }

  /** Marks it as released or kept, unless it is lost already. */
  end(): void {
    if (!this.isHeld) return;
    this.#phase = "ended";
    this.#stop();
  }

  #stop(): void {
    this.#stopAlarm?.();
    this.#over.abort();
  }
}
