// The time that a request waits for its lock, counted over several tries.

import { now } from "./clock.js";
import type { Connection } from "./connection.js";
import { RejectedError, TimedOutError } from "./errors.js";

export class Wait {
  readonly #connection: Connection;
  readonly #whole: number | undefined;
  #since: number | undefined;
  /** What the last request asked for, and whether that was only a part of the wait. */
  #block: number | undefined;
  #isDivided = false;

  /** `whole` in milliseconds; without it, the request does not wait. */
  constructor(connection: Connection, whole: number | undefined) {
    this.#connection = connection;
    this.#whole = whole === 0 ? undefined : whole;
  }

  /** For how long the next try waits: what is left of the wait, as far as the server allows that in one request. */
  next(): number | undefined {
    if (this.#whole === undefined) return undefined;
    const left = Math.max(0, this.end! - now());
    this.#isDivided = left > this.#connection.maxBlock;
    this.#block = Math.min(left, this.#connection.maxBlock);
    return this.#block;
  }

  /** When it ends, by the clock. It begins with the first try. */
  get end(): number | undefined {
    if (this.#whole === undefined) return undefined;
    this.#since ??= now();
    return this.#since + this.#whole;
  }

  /** For a retry after the lock was refused: it waits for the whole time again. */
  restart(): void {
    this.#since = undefined;
  }

  /** Whether the wait goes on at once in a further request, because the last one was only a part of it, or longer than the server allows. */
  async goesOnAfter(error: unknown, limits: { deadline?: number | undefined; stop?: AbortSignal | undefined }): Promise<boolean> {
    if (this.#block === undefined) return false;
    if (error instanceof TimedOutError) return this.#isDivided;
    const isTooLong = error instanceof RejectedError && error.pointer?.endsWith("/block") === true;
    return isTooLong && (await this.#connection.learnMaxBlock(this.#block, limits));
  }
}
