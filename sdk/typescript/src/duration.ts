// Spans of time, as callers write them and as the protocol has them.

/** Milliseconds as a number, or a number and a unit: `"500ms"`, `"30s"`, `"5m"`, `"1h"`, `"1d"`. */
export type Duration = number | `${number}${"ms" | "s" | "m" | "h" | "d"}`;

/** A duration in requests and answers. */
export interface WireDuration {
  value: number;
  unit: "millisecond" | "second" | "minute" | "hour" | "day";
}

const UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const WIRE_UNITS = { millisecond: 1, second: 1_000, minute: 60_000, hour: 3_600_000, day: 86_400_000 };

/** A duration in whole milliseconds. `name` is that of the option, for the error. */
export function milliseconds(duration: Duration, name: string, least = 1): number {
  const value = Math.round(parse(duration));
  if (!(value >= least && value <= Number.MAX_SAFE_INTEGER)) {
    throw new RangeError(
      `\`${name}\` is ${JSON.stringify(duration)}, which is not a duration of ${least} ms or more: write milliseconds as a number, or text such as "500ms", "30s", "5m", "1h" or "1d"`,
    );
  }
  return value;
}

function parse(duration: Duration): number {
  if (typeof duration !== "string") return typeof duration === "number" ? duration : Number.NaN;
  const match = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(duration);
  return match ? Number(match[1]) * UNITS[match[2] as keyof typeof UNITS] : Number.NaN;
}

/** At least one millisecond: the protocol has no shorter duration. */
export function toWire(ms: number): WireDuration {
  return { value: Math.max(1, Math.ceil(ms)), unit: "millisecond" };
}

/** A duration of the protocol in milliseconds; `undefined` for anything else. */
export function fromWire(duration: unknown): number | undefined {
  if (typeof duration !== "object" || duration === null) return undefined;
  const { value, unit } = duration as Partial<WireDuration>;
  const factor = WIRE_UNITS[unit as keyof typeof WIRE_UNITS];
  return typeof value === "number" && value >= 0 && factor ? value * factor : undefined;
}
