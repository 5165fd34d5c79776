// A lock that was acquired, as the server's answer describes it.

import { notUnderstood } from "./transport/failures.js";
import { lockData, type Response } from "./wire.js";

/** A lock that was acquired. Nothing here renews or releases it. */
export interface Held {
  /** The keys that were requested, in that order and normalised by the server; more than one for a lock on several. */
  readonly keys: readonly string[];
  /** Their full keys. The lock can be released by any of them. */
  readonly fullKeys: readonly string[];
  /** The token that releases and extends it. */
  readonly owner: string;
  /** The fencing token, for the resource that the lock protects: 15 digits, which sort as text. */
  readonly fence: string;
  /** When it ends by the server's clock, which need not agree with this machine's. */
  readonly expiresAt: Date;
}

/** A grant: also how long after the request was sent the lease ends at the earliest, unless the server does not say. */
export interface Grant extends Held {
  readonly span: number | undefined;
}

/** The lock that a call ran under, from the answer to it; `undefined` if it had no lock, or did not get it. */
export function heldFrom(response: Response): Held | undefined {
  const data = lockData(response);
  if (data?.acquired !== true) return undefined;
  const { span: _, ...held } = readGrant(data);
  return held;
}

export function readGrant(data: Record<string, unknown>): Grant {
  const { owner, fence, ttl_remaining_ms: left, elapsed_ms: elapsed } = data;
  const keys = texts(data.keys ?? [data.key]);
  const fullKeys = texts(data.full_keys ?? [data.full_key]);
  if (!keys || !fullKeys || typeof owner !== "string" || typeof fence !== "string") {
    throw notUnderstood("it does not describe a lock");
  }
  return {
    keys,
    fullKeys,
    owner,
    fence,
    expiresAt: readDate(data.expires_at),
    span: typeof left === "number" && typeof elapsed === "number" ? left + elapsed : undefined,
  };
}

function texts(value: unknown): string[] | undefined {
  return Array.isArray(value) && value.length > 0 && value.every((text) => typeof text === "string") ? value : undefined;
}

export function readDate(value: unknown): Date {
  const date = new Date(typeof value === "string" ? value : Number.NaN);
  if (Number.isNaN(date.getTime())) throw notUnderstood(`${JSON.stringify(value)} is not a timestamp`);
  return date;
}
