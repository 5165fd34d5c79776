// The client: where calls and acquisitions begin.

import { acquire, type LockOptions } from "./acquire.js";
import { type CallOptions, respond } from "./call.js";
import { Connection } from "./connection.js";
import { type Duration, milliseconds } from "./duration.js";
import { LostError } from "./errors.js";
import type { Keys } from "./keys.js";
import type { Lease } from "./lease.js";
import { Locks } from "./locks.js";
import { type RetryOptions, retryOf } from "./retry.js";
import { type TlsOptions, transportTo } from "./transport.js";
import { CAPABILITIES, DESCRIBE, HEALTH, PING, type Response } from "./wire.js";

export interface ClientOptions {
  /**
   * The API key, sent as `Authorization: Bearer …`, and never shown. Over `http` it is sent in cleartext: use that only in networks that you
   * trust. Over a unix socket it is not sent.
   */
  apiKey?: string;
  /** The certificate authorities to trust, and the client's own certificate. */
  tls?: TlsOptions;
  /** How requests are retried, unless a request says otherwise. */
  retry?: RetryOptions | false;
  /** How long connecting may take, TLS included; 5 seconds by default. */
  connectTimeout?: Duration;
  /** How long an answer may take, in addition to the time that the request waits for a lock; 60 seconds by default. */
  timeout?: Duration;
  /**
   * Whether leases are watched unless they say otherwise, so that a forced release is noticed at once and not at the next renewal; not by
   * default.
   */
  watch?: boolean;
}

/** A client of a Forrst server, or of several behind one URL. */
export class Client implements AsyncDisposable {
  readonly #connection: Connection;
  /** Operations on locks by their full keys: status, list, waiters, watch, release, extend, forceRelease and withdraw. */
  readonly locks: Locks;

  /**
   * Connects when it is used for the first time. `url` is `http://host:7420`, `https://host:7420`, or `unix:/run/forrst.sock` for the socket
   * of a server on this machine.
   */
  constructor(url = "http://127.0.0.1:7420", options: ClientOptions = {}) {
    const { apiKey, tls = {}, retry, connectTimeout = 5_000, timeout = 60_000, watch = false } = options;
    // Not repeated, because it is a secret.
    if (apiKey !== undefined && !/^[\x21-\x7e]+$/.test(apiKey)) {
      throw new TypeError("`apiKey` has to consist of printable ASCII characters without spaces");
    }
    const transport = transportTo(url, { apiKey, tls, connectTimeout: milliseconds(connectTimeout, "connectTimeout") });
    this.#connection = new Connection(transport, retryOf(retry), milliseconds(timeout, "timeout"), watch);
    this.locks = new Locks(this.#connection);
  }

  /** Connects, and makes sure that a Forrst server answers. */
  static async connect(url?: string, options?: ClientOptions): Promise<Client> {
    const client = new Client(url, options);
    await client.ping();
    return client;
  }

  /**
   * Takes a lock for work that runs here, and keeps it until the lease is released. The key is the lock's own (`orders`), not its full one
   * (`lock:orders`).
   *
   * Fails with a `ContendedError` or a `TimedOutError` when another client holds it.
   */
  lock(keys: Keys, options: LockOptions = {}): Promise<Lease> {
    return acquire(this.#connection, keys, options);
  }

  /**
   * Runs `body` under a lock, and releases it when the body has ended. If the lease is lost, the body's `signal` fires; once the body has
   * ended, however, a `LostError` is thrown, with the error of the body as its cause.
   */
  withLock<Out>(keys: Keys, body: (lease: Lease) => Out | Promise<Out>): Promise<Out>;
  withLock<Out>(keys: Keys, options: LockOptions, body: (lease: Lease) => Out | Promise<Out>): Promise<Out>;
  async withLock<Out>(
    keys: Keys,
    optionsOrBody: LockOptions | ((lease: Lease) => Out | Promise<Out>),
    bodyAfterOptions?: (lease: Lease) => Out | Promise<Out>,
  ): Promise<Out> {
    const isBody = typeof optionsOrBody === "function";
    const body = isBody ? optionsOrBody : bodyAfterOptions;
    if (typeof body !== "function") throw new TypeError("`withLock` needs a function to run under the lock");
    const lease = await this.lock(keys, isBody ? {} : optionsOrBody);
    let out: Out;
    try {
      out = await body(lease);
    } catch (error) {
      await lease[Symbol.asyncDispose]().catch(() => undefined);
      const { reason } = lease.signal;
      if (!lease.signal.aborted || error === reason) throw error;
      throw new LostError((reason as LostError).message, { cause: error });
    }
    await lease[Symbol.asyncDispose]();
    return out;
  }

  /**
   * Calls a function, which runs on the server, under a lock if one is named, and returns its result.
   *
   * A function may charge a card, so by default a call is retried only if the function certainly did not begin.
   */
  async call<Out = unknown>(fn: string, args: object = {}, options: CallOptions = {}): Promise<Out> {
    return (await this.response(fn, args, options)).result as Out;
  }

  /** Calls a function, and returns the whole answer, with the data of the extensions: `heldFrom` reads that of the lock. */
  response(fn: string, args: object = {}, options: CallOptions = {}): Promise<Response> {
    return respond(this.#connection, fn, args, options);
  }

  /** Checks that the server answers. */
  async ping(): Promise<void> {
    await this.#connection.ask(PING, {});
  }

  /** The health of the server and its store, as the server sends it. */
  health(): Promise<Record<string, unknown>> {
    return this.#connection.ask(HEALTH, {});
  }

  /** The server's protocol versions, functions, extensions and limits, as the server sends them. */
  capabilities(): Promise<Record<string, unknown>> {
    return this.#connection.ask(CAPABILITIES, {});
  }

  /** The discovery document: of all functions, of one, or of one version of it. */
  describe(fn?: string, version?: string): Promise<Record<string, unknown>> {
    return this.#connection.ask(DESCRIBE, { ...(fn !== undefined && { function: fn }), ...(version !== undefined && { version }) });
  }

  /**
   * Waits for background work, at most `limit`. Whether all of it is done. An acquisition that is given up is withdrawn in the background, and
   * so is a release that got no answer continued. If the program ends before that is done, the locks stay held until they expire.
   */
  settle(limit: Duration = 5_000): Promise<boolean> {
    return this.#connection.background.settle(milliseconds(limit, "limit", 0));
  }

  /** Waits for background work, five seconds at most, and closes idle connections. It does not release the leases that are held. */
  async close(): Promise<void> {
    await this.settle();
    this.#connection.transport.close();
  }

  /** For `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
