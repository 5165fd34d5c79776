// A server that answers as a test says, for what a real one does not do on demand.

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";

export interface Received {
  fn: string;
  args: Record<string, unknown>;
  request: { id: string; extensions?: { urn: string; options: Record<string, unknown> }[] };
  /** Whether the connection was used before. */
  isReused: boolean;
}

/** The result of a function, an error code, or nothing: the connection is closed then. */
export type Answer = { result: object } | { code: string } | undefined | Promise<{ result: object } | undefined>;

export class Fake implements AsyncDisposable {
  readonly url: string;
  readonly received: Received[] = [];
  readonly #server: ReturnType<typeof createServer>;

  private constructor(server: ReturnType<typeof createServer>) {
    this.#server = server;
    this.url = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  }

  static async start(answer: (received: Received) => Answer): Promise<Fake> {
    const seen = new WeakSet<object>();
    const server = createServer(async (message: IncomingMessage, reply: ServerResponse) => {
      const chunks: Buffer[] = [];
      for await (const chunk of message) chunks.push(chunk as Buffer);
      const request = JSON.parse(Buffer.concat(chunks).toString());
      const { function: name, arguments: args } = request.call;
      const isReused = seen.has(message.socket);
      seen.add(message.socket);
      const received = { fn: String(name).replace(/^urn:.*:/, ""), args, request, isReused };
      fake.received.push(received);
      const answered = await answer(received);
      if (answered === undefined) return message.socket.destroy();
      const { protocol, id } = request;
      const body =
        "code" in answered
          ? { protocol, id, result: null, errors: [{ code: answered.code, message: "as the test says" }] }
          : { protocol, id, result: answered.result };
      return reply.setHeader("content-type", "application/json").end(JSON.stringify(body));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const fake = new Fake(server);
    return fake;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** The answer to `acquire`. */
export function grant({ args }: Received, more: object = {}): { result: object } {
  const { key, owner } = args;
  const expires_at = new Date(Date.now() + 60_000).toISOString();
  const times = { ttl_remaining_ms: 60_000, elapsed_ms: 0, ...more };
  return { result: { key, owner, full_key: `lock:${key}`, acquired: true, fence: "000000000000007", expires_at, ...times } };
}

export function extended({ args }: Received): { result: object } {
  return { result: { key: args.key, extended: true, fence: args.fence, expires_at: new Date(Date.now() + 60_000).toISOString() } };
}
