// How one request gets to a server and its answer back: by the scheme of the URL, over HTTP or a unix socket.

import { isAbsolute } from "node:path";
import { HttpTransport } from "./transport/http.js";
import { UnixTransport } from "./transport/unix.js";
import type { Response, WireRequest } from "./wire.js";

export interface Transport {
  /**
   * Sends a request once. Fails with `UnreachableError` if nothing was sent, `LostAnswerError` if there is no answer, `CancelledError` if it
   * was stopped, and `NotUnderstoodError`, `UnauthorizedError` or `ForbiddenError` if the answer is not one of the protocol.
   */
  send(request: WireRequest, options: SendOptions): Promise<Response>;
  /** Closes idle connections. */
  close(): void;
}

export interface SendOptions {
  /** How many milliseconds the answer may take. */
  patience: number;
  /** Gives the request up. */
  stop?: AbortSignal | undefined;
  /** Does not use a connection that another request has used: it may be dead. */
  fresh?: boolean | undefined;
  /** Lets the process end meanwhile. */
  unref?: boolean | undefined;
}

export interface TlsOptions {
  /** Trusts only these authorities, in PEM; by default, those of Node. */
  ca?: string | Uint8Array | (string | Uint8Array)[];
  /** The client's certificate chain, in PEM. */
  cert?: string | Uint8Array;
  /** The private key of `cert`, in PEM. */
  key?: string | Uint8Array;
  passphrase?: string;
  /** The name that the server's certificate has to be for; by default, that of the URL. */
  servername?: string;
}

export interface ConnectOptions {
  apiKey: string | undefined;
  tls: TlsOptions;
  connectTimeout: number;
}

export function transportTo(address: string, options: ConnectOptions): Transport {
  const path = /^unix:(?:\/\/(?=\/))?(.*)$/s.exec(address)?.[1];
  if (path !== undefined) {
    if (!isAbsolute(path) || path.startsWith("//")) throw invalid(address, "write unix:/PATH, with the absolute path of a socket");
    return new UnixTransport(path, options.connectTimeout);
  }
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    throw invalid(address, "write http://HOST:PORT, https://HOST:PORT or unix:/PATH");
  }
  if (url.username !== "" || url.password !== "") {
    // Not repeated, because it may be a secret.
    throw new TypeError("the URL of a server must not have a user or a password: use `apiKey`");
  }
  if (url.search !== "" || url.hash !== "") throw invalid(address, "it must not have a query or a fragment");
  if (url.protocol !== "http:" && url.protocol !== "https:") throw invalid(address, "it must start with http, https or unix");
  const base = url.pathname.replace(/\/+$/, "");
  url.pathname = base.endsWith("/forrst") ? base : `${base}/forrst`;
  return new HttpTransport(url, options);
}

function invalid(address: string, why: string): TypeError {
  return new TypeError(`\`${address}\` is not the URL of a server: ${why}`);
}
