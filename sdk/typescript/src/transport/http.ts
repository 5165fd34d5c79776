// `POST /forrst` over pooled connections of Node's own HTTP client. (Not `fetch`: it gives up on an answer whose head takes five minutes,
// cannot be given a certificate authority, and does not say whether a request was sent.)

import * as http from "node:http";
import * as https from "node:https";
import { limited } from "../clock.js";
import { describe, ForbiddenError, type ForrstError, UnauthorizedError } from "../errors.js";
import type { ConnectOptions, SendOptions, Transport } from "../transport.js";
import { MAX_ANSWER_BYTES, parseResponse, type Response, type WireRequest } from "../wire.js";
import { cancelled, lostAnswer, notUnderstood, unreachable } from "./failures.js";

/** Shorter than servers keep idle connections, so that no request is sent on a connection that is about to be closed. */
const IDLE_TIMEOUT = 30_000;

export class HttpTransport implements Transport {
  readonly #url: URL;
  readonly #headers: Record<string, string>;
  readonly #connectTimeout: number;
  readonly #newAgent: (options: http.AgentOptions) => http.Agent;
  readonly #agent: http.Agent;

  constructor(url: URL, { apiKey, tls, connectTimeout }: ConnectOptions) {
    this.#url = url;
    this.#headers = { "content-type": "application/json" };
    if (apiKey !== undefined) this.#headers.authorization = `Bearer ${apiKey}`;
    this.#connectTimeout = connectTimeout;
    const tlsOptions = tls as https.AgentOptions;
    this.#newAgent = (options) =>
      url.protocol === "https:" ? new https.Agent({ ...tlsOptions, ...options }) : new http.Agent(options);
    this.#agent = this.#newAgent({ keepAlive: true, timeout: IDLE_TIMEOUT });
  }

  close(): void {
    this.#agent.destroy();
  }

  send(message: WireRequest, { patience, stop, fresh, unref }: SendOptions): Promise<Response> {
    const body = Buffer.from(JSON.stringify(message));
    return new Promise((resolve, reject) => {
      if (stop?.aborted) return reject(cancelled(stop, false));
      const isSecure = this.#url.protocol === "https:";
      let isConnected = false;
      const request = (isSecure ? https : http).request(this.#url, {
        method: "POST",
        headers: { ...this.#headers, "content-length": body.length },
        agent: fresh ? this.#newAgent({ keepAlive: false }) : this.#agent,
      });

      const settle = () => {
        clearTimeout(connecting);
        clearTimeout(answering);
        stop?.removeEventListener("abort", abort);
      };
      const fail = (error: ForrstError) => {
        settle();
        reject(error);
        request.destroy();
      };
      const lost = (why: string, cause?: unknown) =>
        fail(isConnected ? lostAnswer(why, cause) : unreachable(why, cause));
      const abort = () => fail(cancelled(stop, isConnected));
      // The connection keeps the process alive, if anything does.
      const after = (ms: number, run: () => void) => setTimeout(run, limited(ms)).unref();
      const connecting = after(this.#connectTimeout, () => fail(unreachable(`no connection within ${this.#connectTimeout} ms`)));
      const answering = after(patience, () => lost(`no answer within ${Math.round(patience)} ms`));
      stop?.addEventListener("abort", abort, { once: true });

      request.on("socket", (socket) => {
        if (unref) socket.unref();
        const connected = () => {
          isConnected = true;
          clearTimeout(connecting);
        };
        if (request.reusedSocket) connected();
        else socket.once(isSecure ? "secureConnect" : "connect", connected);
      });
      request.on("error", (error: NodeJS.ErrnoException) => {
        if (error.code?.startsWith("HPE_")) fail(notUnderstood(`it is not HTTP: ${describe(error)}`, error));
        else lost(describe(error), error);
      });
      request.on("response", (answer) => {
        const chunks: Buffer[] = [];
        let size = 0;
        answer.on("data", (chunk: Buffer) => {
          size += chunk.length;
          if (size > MAX_ANSWER_BYTES) fail(notUnderstood(`it is larger than ${MAX_ANSWER_BYTES} bytes`));
          else chunks.push(chunk);
        });
        answer.on("error", (error) => lost(describe(error), error));
        answer.on("close", () => lost("the connection was closed in the middle of the answer"));
        answer.on("end", () => {
          if (!answer.complete) return;
          settle();
          const text = Buffer.concat(chunks).toString();
          const response = parseResponse(text);
          if (response) resolve(response);
          else reject(withoutEnvelope(answer));
        });
      });
      request.end(body);
    });
  }
}

/** What the status of an answer means that is not one of the protocol, but of a proxy, say. */
function withoutEnvelope({ statusCode = 0, headers }: http.IncomingMessage): ForrstError {
  const status = `HTTP status ${statusCode} without a Forrst answer`;
  const seconds = Number(headers["retry-after"]);
  const retryAfter = Number.isFinite(seconds) && seconds >= 0 ? seconds * 1_000 : undefined;
  switch (statusCode) {
    case 401:
      return new UnauthorizedError(`the server does not accept the credentials: ${status}`, { mayHaveRun: false });
    case 403:
      return new ForbiddenError(`not allowed: ${status}`, { mayHaveRun: false });
    case 429:
    case 502:
    case 503:
    case 504:
      return lostAnswer(status, undefined, retryAfter);
    default:
      return notUnderstood(status);
  }
}
