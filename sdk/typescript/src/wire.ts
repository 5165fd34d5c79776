// The envelope of requests and answers.

import { fromWire } from "./duration.js";

export interface WireRequest {
  protocol: { name: "forrst"; version: string };
  id: string;
  call: { function: string; version?: string; arguments?: object };
  context?: object;
  extensions?: Extension[];
}

/** An extension of a request. */
export interface Extension {
  urn: string;
  options?: object;
  /** Whether a server that does not know it refuses the request, which is the default. */
  required?: boolean;
}

/** The answer of a server, as it was sent. */
export interface Response {
  id: string | null;
  /** `null` if the request failed. */
  result: unknown;
  /** Only if the request failed; at least one. */
  errors?: ServerError[];
  extensions?: { urn: string; data: Record<string, unknown> }[];
  meta?: Record<string, unknown>;
}

/** An error in an answer. */
export interface ServerError {
  code: string;
  message: string;
  source?: { pointer?: string; position?: number };
  details?: Record<string, unknown>;
}

export const PROTOCOL = { name: "forrst", version: "0.1.0" } as const;

/** The largest answer that is read. */
export const MAX_ANSWER_BYTES = 64 * 1024 * 1024;

export const LOCK_URN = "urn:forrst:ext:atomicLock";
export const DEADLINE_URN = "urn:forrst:ext:deadline";
export const CANCELLATION_URN = "urn:forrst:ext:cancellation";

const FN = "urn:cline:forrst:ext:atomic-lock:fn";
export const ACQUIRE = `${FN}:acquire`;
export const EXTEND = `${FN}:extend`;
export const RELEASE = `${FN}:release`;
export const WITHDRAW = `${FN}:withdraw`;
export const STATUS = `${FN}:status`;
export const WATCH = `${FN}:watch`;
export const WAITERS = `${FN}:waiters`;
export const LIST = `${FN}:list`;
export const FORCE_RELEASE = `${FN}:force-release`;
export const CANCEL = "urn:cline:forrst:ext:cancellation:fn:cancel";
export const PING = "urn:cline:forrst:fn:ping";
export const HEALTH = "urn:cline:forrst:fn:health";
export const CAPABILITIES = "urn:cline:forrst:fn:capabilities";
export const DESCRIBE = "urn:cline:forrst:fn:describe";

/** The answer in a text, or `undefined` if it has none. */
export function parseResponse(text: string): Response | undefined {
  let answer: unknown;
  try {
    answer = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!isObject(answer) || !isObject(answer.protocol) || answer.protocol.name !== PROTOCOL.name) return undefined;
  if (answer.id !== null && typeof answer.id !== "string") return undefined;
  if (!("result" in answer)) return undefined;
  if ("errors" in answer && !isErrors(answer.errors)) return undefined;
  if (answer.extensions !== undefined && !isExtensions(answer.extensions)) return undefined;
  return answer as unknown as Response;
}

function isErrors(errors: unknown): boolean {
  const isError = (error: unknown) =>
    isObject(error) && typeof error.code === "string" && typeof error.message === "string";
  return Array.isArray(errors) && errors.length > 0 && errors.every(isError);
}

function isExtensions(extensions: unknown): boolean {
  return Array.isArray(extensions) && extensions.every((entry) => isObject(entry) && typeof entry.urn === "string");
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The data of the lock that a call asked for. */
export function lockData(response: Response): Record<string, unknown> | undefined {
  const data = response.extensions?.find(({ urn }) => urn === LOCK_URN)?.data;
  return isObject(data) ? data : undefined;
}

/** The longest `retry_after` of the errors, in milliseconds. */
export function retryAfterOf(errors: ServerError[]): number | undefined {
  const named = errors.map((error) => fromWire(error.details?.retry_after)).filter((ms) => ms !== undefined);
  return named.length > 0 ? Math.max(...named) : undefined;
}
