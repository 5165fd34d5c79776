// What a lock is on, as callers write it and as requests have it.

/** One key of several, held in its own way. */
export interface Key {
  key: string;
  /** `true`: together with other shared leases. `false`: alone, whatever the lock's own `shared` or `limit`. */
  shared?: boolean;
  /** At most so many leases at once: a counting semaphore. */
  limit?: number;
}

/** A key, or 2 to 16 keys: all of them or none, in one step. No order of the keys can deadlock. */
export type Keys = string | readonly (string | Key)[];

/** How a lock is held; without either, by one lease alone. */
export interface Kind {
  /** Together with other shared leases, but never beside an exclusive one. */
  shared?: boolean;
  /** At most so many leases at once: a counting semaphore. All of them have to name the same limit. */
  limit?: number;
}

export interface WireKeys {
  key?: string;
  keys?: (string | object)[];
  mode?: "exclusive" | "shared";
  limit?: number;
}

export function wireKeys(keys: Keys, kind: Kind): WireKeys {
  if (typeof keys === "string") return { key: keys, ...wireKind(kind) };
  const [first, ...others] = keys;
  if (first === undefined) throw new RangeError("a lock needs at least one key");
  if (others.length === 0) {
    const { key, ...own } = asKey(first);
    return { key, ...wireKind({ ...kind, ...own }) };
  }
  const entry = (one: string | Key) => (typeof one === "string" ? one : { key: one.key, ...wireKind(one) });
  return { keys: keys.map(entry), ...wireKind(kind) };
}

/** The full key of the first key, as servers derive it; it stands for all of them. */
export function firstFullKey(keys: Keys, fn: string | undefined): string {
  const first = typeof keys === "string" ? keys : asKey(keys[0] ?? "").key;
  return fullKey(first, fn);
}

/** The name of a lock in the store: `lock:{key}`, or `lock:{function}:{key}` for the lock of a function. */
export function fullKey(key: string, fn?: string): string {
  return fn === undefined ? `lock:${key}` : `lock:${fn}:${key}`;
}

function asKey(one: string | Key): Key {
  return typeof one === "string" ? { key: one } : one;
}

function wireKind({ shared, limit }: Kind): Pick<WireKeys, "mode" | "limit"> {
  return {
    ...(shared !== undefined && { mode: shared ? "shared" : "exclusive" }),
    ...(limit !== undefined && { limit }),
  };
}
