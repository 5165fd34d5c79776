// One connection to a unix socket for all requests. Each frame is four bytes of length, big-endian, and the JSON of a request or a response.
// Answers come in any order, and are matched by the id of the request.

import { connect, type Socket } from "node:net";
import { limited } from "../clock.js";
import { describe, errorOf, type ForrstError } from "../errors.js";
import type { SendOptions, Transport } from "../transport.js";
import { MAX_ANSWER_BYTES, parseResponse, type Response, type WireRequest } from "../wire.js";
import { cancelled, lostAnswer, unreachable } from "./failures.js";

export class UnixTransport implements Transport {
  readonly #path: string;
  readonly #connectTimeout: number;
  #link: Link | undefined;

  constructor(path: string, connectTimeout: number) {
    this.#path = path;
    this.#connectTimeout = connectTimeout;
  }

  close(): void {
    this.#link?.retire();
    this.#link = undefined;
  }

  send(message: WireRequest, { patience, stop, fresh, unref = false }: SendOptions): Promise<Response> {
    if (stop?.aborted) return Promise.reject(cancelled(stop, false));
    if (fresh) this.close();
    if (!this.#link?.isOpen) this.#link = new Link(this.#path, this.#connectTimeout);
    const link = this.#link;
    return new Promise((resolve, reject) => {
      const settle = () => {
        clearTimeout(timer);
        stop?.removeEventListener("abort", abort);
      };
      const abort = () => link.forget(message.id, (isConnected) => cancelled(stop, isConnected));
      const timer = setTimeout(() => {
        const why = `no answer within ${Math.round(patience)} ms`;
        link.forget(message.id, (isConnected) => (isConnected ? lostAnswer(why) : unreachable(why)));
      }, limited(patience)).unref();
      stop?.addEventListener("abort", abort, { once: true });
      link.send(message, {
        unref,
        resolve: (response) => {
          settle();
          resolve(response);
        },
        reject: (error) => {
          settle();
          reject(error);
        },
      });
    });
  }
}

interface Pending {
  unref: boolean;
  resolve: (response: Response) => void;
  reject: (error: ForrstError) => void;
}

/** One connection. */
class Link {
  readonly #socket: Socket;
  readonly #pending = new Map<string, Pending>();
  readonly #connecting: NodeJS.Timeout;
  #isConnected = false;
  #isRetired = false;
  #received: Buffer[] = [];
  #size = 0;
  isOpen = true;

  constructor(path: string, connectTimeout: number) {
    this.#socket = connect(path);
    this.#socket.on("connect", () => {
      this.#isConnected = true;
      clearTimeout(this.#connecting);
    });
    this.#socket.on("data", (chunk) => this.#read(chunk));
    this.#socket.on("error", (error) => this.#end(describe(error), error));
    this.#socket.on("close", () => this.#end("the connection was closed"));
    this.#connecting = setTimeout(() => this.#end(`no connection within ${connectTimeout} ms`), limited(connectTimeout)).unref();
  }

  send(message: WireRequest, pending: Pending): void {
    this.#pending.set(message.id, pending);
    const body = Buffer.from(JSON.stringify(message));
    const length = Buffer.alloc(4);
    length.writeUInt32BE(body.length);
    this.#socket.write(Buffer.concat([length, body]));
    this.#keepAlive();
  }

  /** Gives one request up; the connection stays open for the others. */
  forget(id: string, error: (isConnected: boolean) => ForrstError): void {
    this.#take(id)?.reject(error(this.#isConnected));
  }

  /** Closes the connection when it is not needed any more. */
  retire(): void {
    this.#isRetired = true;
    this.isOpen = false;
    this.#keepAlive();
  }

  #read(chunk: Buffer): void {
    this.#received.push(chunk);
    this.#size += chunk.length;
    while (this.#size >= 4) {
      const head = this.#peek(4).readUInt32BE();
      if (head > MAX_ANSWER_BYTES) return this.#end(`an answer is larger than ${MAX_ANSWER_BYTES} bytes`);
      if (this.#size < 4 + head) return;
      const received = this.#peek(this.#size);
      this.#received = [received.subarray(4 + head)];
      this.#size -= 4 + head;
      this.#answer(received.toString("utf8", 4, 4 + head));
    }
  }

  /** The first bytes, of which there are enough. */
  #peek(size: number): Buffer {
    if (this.#received[0]!.length < size) this.#received = [Buffer.concat(this.#received)];
    return this.#received[0]!.subarray(0);
  }

  #answer(text: string): void {
    const response = parseResponse(text);
    if (!response) return this.#end("an answer is not one of the protocol");
    if (response.id !== null) return this.#take(response.id)?.resolve(response);
    // It is about the connection, which the server closes after it.
    const error = response.errors ? errorOf(response) : undefined;
    this.#end(error?.message ?? "an answer has no id", error);
  }

  #take(id: string): Pending | undefined {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    this.#keepAlive();
    return pending;
  }

  #end(why: string, cause?: unknown): void {
    this.isOpen = false;
    clearTimeout(this.#connecting);
    this.#socket.destroy();
    const all = [...this.#pending.values()];
    this.#pending.clear();
    for (const { reject } of all) reject(this.#isConnected ? lostAnswer(why, cause) : unreachable(why, cause));
  }

  /** The connection keeps the process alive only as long as a request needs it. */
  #keepAlive(): void {
    if (this.#isRetired && this.#pending.size === 0) this.#socket.destroy();
    else if ([...this.#pending.values()].some(({ unref }) => !unref)) this.#socket.ref();
    else this.#socket.unref();
  }
}
