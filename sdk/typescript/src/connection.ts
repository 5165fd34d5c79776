// The settings that all requests of a client share, and how a single request is sent.

import { randomUUID } from "node:crypto";
import { Background } from "./background.js";
import { now } from "./clock.js";
import { fromWire, toWire } from "./duration.js";
import { DeadlineExceededError, errorOf, ForrstError, LostAnswerError } from "./errors.js";
import { type Retry, Tries, type TryLimits } from "./retry.js";
import type { Transport } from "./transport.js";
import { notUnderstood } from "./transport/failures.js";
import { CAPABILITIES, DEADLINE_URN, type Extension, isObject, PROTOCOL, type Response } from "./wire.js";

/** A request, without its id. */
export interface Message {
  function: string;
  version?: string | undefined;
  arguments?: object | undefined;
  context?: object | undefined;
  extensions?: Extension[] | undefined;
}

export interface ExchangeOptions {
  /** How long the answer may take, in milliseconds; by default, the usual time. */
  patience?: number | undefined;
  /** How long the request waits for a lock, which the usual time does not cover. */
  block?: number | undefined;
  /** Until when, by the clock; it is sent to the server, and replaces `patience`. */
  deadline?: number | undefined;
  stop?: AbortSignal | undefined;
  fresh?: boolean | undefined;
  unref?: boolean | undefined;
}

/** How much of the time before a deadline is left to the server's answer to arrive here. */
const MOMENT = 50;

export class Connection {
  readonly background = new Background();
  #maxBlock: number | undefined;

  constructor(
    readonly transport: Transport,
    readonly retry: Retry,
    readonly timeout: number,
    /** Whether leases are watched unless they say otherwise. */
    readonly watch: boolean,
  ) {}

  /** Sends a request once. A failure that the server reports is an error, too. */
  async exchange(message: Message, options: ExchangeOptions = {}): Promise<Response> {
    const { deadline, block = 0, stop, fresh, unref } = options;
    const extensions = [...(message.extensions ?? [])];
    let patience = options.patience ?? this.timeout + block;
    if (deadline !== undefined) {
      patience = deadline - now();
      if (patience < 1) throw deadlineExceeded(false);
      const ofServer = Math.max(1, Math.floor(patience - Math.min(MOMENT, patience / 10)));
      extensions.push({ urn: DEADLINE_URN, options: toWire(ofServer) });
    }
    const id = randomUUID();
    const request = {
      protocol: PROTOCOL,
      id,
      call: {
        function: message.function,
        ...(message.version !== undefined && { version: message.version }),
        arguments: message.arguments ?? {},
      },
      ...(message.context !== undefined && { context: message.context }),
      ...(extensions.length > 0 && { extensions }),
    };
    let response: Response;
    try {
      response = await this.transport.send(request, { patience, stop, fresh, unref });
    } catch (error) {
      const isOver = deadline !== undefined && error instanceof LostAnswerError && now() >= deadline;
      throw isOver ? deadlineExceeded(true, error) : error;
    }
    // One without an id was refused before it was read.
    if (response.id !== id && !(response.id === null && response.errors)) throw notUnderstood("it answers another request");
    if (response.errors) throw errorOf(response);
    return response;
  }

  /** Calls a system function once, and returns its result. */
  async askOnce(fn: string, args: object, options?: ExchangeOptions): Promise<Record<string, unknown>> {
    const { result } = await this.exchange({ function: fn, arguments: args }, options);
    if (!isObject(result)) throw notUnderstood("the result is not an object");
    return result;
  }

  /** Calls a system function, which may be called twice unless `limits` says otherwise. */
  async ask(
    fn: string,
    args: object,
    { retry = this.retry, tries = new Tries(retry, { isRepeatable: true }), ...options }: AskOptions = {},
  ): Promise<Record<string, unknown>> {
    for (;;) {
      try {
        return await this.askOnce(fn, args, { ...options, fresh: tries.isSuspect });
      } catch (error) {
        if (!(error instanceof ForrstError)) throw error;
        await tries.after(error);
      }
    }
  }

  /** The tries of background work that is pointless after `time`. */
  triesInBackground(retry: Retry, time: number): Tries {
    return new Tries(retry, { isRepeatable: true, deadline: now() + time, unref: true });
  }

  /** The longest time that a request may wait for a lock, if that is known here. */
  get maxBlock(): number {
    return this.#maxBlock ?? Number.POSITIVE_INFINITY;
  }

  /**
   * Asks for the server's limit, after it has refused to wait for `block`. Whether it is smaller, so that the wait has to be divided among
   * several requests.
   */
  async learnMaxBlock(block: number, limits: Omit<TryLimits, "isRepeatable">): Promise<boolean> {
    // Another request may have learned it meanwhile.
    if (this.maxBlock < block) return true;
    const tries = new Tries(this.retry, { ...limits, isRepeatable: true });
    const answer = await this.ask(CAPABILITIES, {}, { tries, stop: limits.stop });
    const max = isObject(answer.limits) ? fromWire(answer.limits.max_lock_block) : undefined;
    if (max === undefined || max >= block) return false;
    this.#maxBlock = max;
    return true;
  }
}

export interface AskOptions extends ExchangeOptions {
  retry?: Retry | undefined;
  tries?: Tries | undefined;
}

function deadlineExceeded(mayHaveRun: boolean, cause?: unknown): DeadlineExceededError {
  const what = mayHaveRun ? ", and no answer came: the request may have been carried out" : "";
  return new DeadlineExceededError(`the deadline has passed${what}`, { mayHaveRun, cause });
}
