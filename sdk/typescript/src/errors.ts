// The errors of calls and lock operations: one class for each way of handling them.

import { lockData, retryAfterOf, type Response, type ServerError } from "./wire.js";

/** What went wrong, as a text to switch on. */
export type ErrorKind =
  | "contended"
  | "timed_out"
  | "lost"
  | "mismatch"
  | "not_held"
  | "already_released"
  | "deadline"
  | "cancelled"
  | "unavailable"
  | "unreachable"
  | "lost_answer"
  | "rate_limited"
  | "unauthorized"
  | "forbidden"
  | "rejected"
  | "failed"
  | "not_understood";

interface Origin {
  /** The answer of the server, if the error is one that it reported. */
  response?: Response | undefined;
  cause?: unknown;
  /** In milliseconds; without it, that of the response. */
  retryAfter?: number | undefined;
  mayHaveRun?: boolean;
}

/**
 * Why a call or a lock operation has no result. Where the server answered, `code`, `pointer` and `details` are those of the first error
 * that it reported; `errors` has them all.
 */
export abstract class ForrstError extends Error {
  abstract readonly kind: ErrorKind;
  /** The answer of the server, if the error is one that it reported. */
  readonly response?: Response;
  /** How long the server asks not to retry, in milliseconds. */
  readonly retryAfter?: number;
  /** Whether the function that was called may have begun. If not, any call may safely be repeated. */
  readonly mayHaveRun: boolean;

  constructor(message: string, { response, cause, retryAfter, mayHaveRun = true }: Origin = {}) {
    super(response ? `${message}: ${describeErrors(response)}` : message, cause === undefined ? undefined : { cause });
    hide(this, "response", response);
    hide(this, "retryAfter", retryAfter ?? retryAfterOf(response?.errors ?? []));
    this.mayHaveRun = mayHaveRun;
  }

  /** The errors that the server reported. */
  get errors(): ServerError[] {
    return this.response?.errors ?? [];
  }

  /** What went wrong on the server, for programs. */
  get code(): string | undefined {
    return this.errors[0]?.code;
  }

  /** Which part of the request is wrong, such as `/call/arguments/amount`. */
  get pointer(): string | undefined {
    return this.errors[0]?.source?.pointer;
  }

  /** Further members of the server's error, such as the keys in the way. */
  get details(): Record<string, unknown> | undefined {
    return this.errors[0]?.details;
  }
}

/** Left out of the output of `console.log(error)`, which the message says already. */
function hide(error: ForrstError, name: string, value: unknown): void {
  if (value !== undefined) Object.defineProperty(error, name, { value });
}

/** The lock is held, and the request did not wait for it (`LOCK_ACQUISITION_FAILED`). */
export class ContendedError extends ForrstError {
  get kind() { return "contended" as const; }
  override get name() { return "ContendedError"; }
}
/** The lock was held for as long as the request waited for it (`LOCK_TIMEOUT`). */
export class TimedOutError extends ForrstError {
  get kind() { return "timed_out" as const; }
  override get name() { return "TimedOutError"; }
}
/** The lease ended before it was released; another client may hold the lock. */
export class LostError extends ForrstError {
  get kind() { return "lost" as const; }
  override get name() { return "LostError"; }
}
/** The lock belongs to another owner, or to another lease of the same one (`LOCK_OWNERSHIP_MISMATCH`). */
export class MismatchError extends ForrstError {
  get kind() { return "mismatch" as const; }
  override get name() { return "MismatchError"; }
}
/** The lock is not held (`LOCK_NOT_FOUND`). */
export class NotHeldError extends ForrstError {
  get kind() { return "not_held" as const; }
  override get name() { return "NotHeldError"; }
}
/** The lease was released before, by its owner or by force (`LOCK_ALREADY_RELEASED`). */
export class AlreadyReleasedError extends ForrstError {
  get kind() { return "already_released" as const; }
  override get name() { return "AlreadyReleasedError"; }
}
/** The deadline passed, here or on the server (`DEADLINE_EXCEEDED`). The function may have run. */
export class DeadlineExceededError extends ForrstError {
  get kind() { return "deadline" as const; }
  override get name() { return "DeadlineExceededError"; }
}
/** The caller's `AbortSignal` ended it; its reason is the `cause`. `mayHaveRun` says whether anything was sent. */
export class CancelledError extends ForrstError {
  get kind() { return "cancelled" as const; }
  override get name() { return "CancelledError"; }
}
/** The server cannot serve now (`UNAVAILABLE`, maintenance). */
export class UnavailableError extends ForrstError {
  get kind() { return "unavailable" as const; }
  override get name() { return "UnavailableError"; }
}
/** No connection to the server could be made. Nothing was sent. */
export class UnreachableError extends ForrstError {
  get kind() { return "unreachable" as const; }
  override get name() { return "UnreachableError"; }
}
/** The connection broke, or no answer came in time. What was sent may have been carried out. */
export class LostAnswerError extends ForrstError {
  get kind() { return "lost_answer" as const; }
  override get name() { return "LostAnswerError"; }
}
/** Too many requests (`RATE_LIMITED`). */
export class RateLimitedError extends ForrstError {
  get kind() { return "rate_limited" as const; }
  override get name() { return "RateLimitedError"; }
}
/** The credentials are missing or wrong (`UNAUTHORIZED`). */
export class UnauthorizedError extends ForrstError {
  get kind() { return "unauthorized" as const; }
  override get name() { return "UnauthorizedError"; }
}
/** The caller may not do this (`FORBIDDEN`). */
export class ForbiddenError extends ForrstError {
  get kind() { return "forbidden" as const; }
  override get name() { return "ForbiddenError"; }
}
/** The request is invalid, and nothing was done: its arguments, function, version or extensions are wrong. */
export class RejectedError extends ForrstError {
  get kind() { return "rejected" as const; }
  override get name() { return "RejectedError"; }
}
/** The function itself failed: with a code of its own, or unexpectedly (`INTERNAL_ERROR`). */
export class FunctionError extends ForrstError {
  get kind() { return "failed" as const; }
  override get name() { return "FunctionError"; }
}
/** The answer is not a Forrst answer. The request may have been carried out. */
export class NotUnderstoodError extends ForrstError {
  get kind() { return "not_understood" as const; }
  override get name() { return "NotUnderstoodError"; }
}

/** The error that a failed answer means: by its first error, since servers report several only when the request itself is invalid. */
export function errorOf(response: Response): ForrstError {
  const code = response.errors?.[0]?.code;
  const acquired = lockData(response)?.acquired;
  switch (code) {
    case "LOCK_ACQUISITION_FAILED":
      return new ContendedError("the lock is held", { response, mayHaveRun: acquired === true });
    case "LOCK_TIMEOUT":
      return new TimedOutError("the lock was not free in time", { response, mayHaveRun: acquired === true });
    case "LOCK_OWNERSHIP_MISMATCH":
      return new MismatchError("the lock is held by another owner or lease", { response });
    case "LOCK_NOT_FOUND":
      return new NotHeldError("the lock is not held", { response });
    case "LOCK_ALREADY_RELEASED":
      return new AlreadyReleasedError("the lock was already released", { response });
    case "DEADLINE_EXCEEDED":
      return new DeadlineExceededError("the deadline has passed", { response });
    case "CANCELLED":
      return new CancelledError("the call was cancelled", { response });
    case "UNAVAILABLE":
      // This is also the answer when a server that shuts down ends the function. It did not begin if its lock was not acquired, or if
      // the server did not even read the request.
      return new UnavailableError("the server is unavailable", {
        response,
        mayHaveRun: acquired !== false && response.id !== null,
      });
    case "SERVER_MAINTENANCE":
    case "FUNCTION_MAINTENANCE":
    case "FUNCTION_DISABLED":
      return new UnavailableError("the server is unavailable", { response, mayHaveRun: false });
    case "RATE_LIMITED":
      return new RateLimitedError("too many requests", { response, mayHaveRun: acquired === true });
    case "UNAUTHORIZED":
      return new UnauthorizedError("the server does not accept the credentials", { response, mayHaveRun: false });
    case "FORBIDDEN":
      return new ForbiddenError("not allowed", { response, mayHaveRun: false });
    case "PARSE_ERROR":
    case "INVALID_REQUEST":
    case "INVALID_PROTOCOL_VERSION":
    case "INVALID_ARGUMENTS":
    case "EXTENSION_NOT_SUPPORTED":
    case "EXTENSION_NOT_APPLICABLE":
    case "FUNCTION_NOT_FOUND":
    case "VERSION_NOT_FOUND":
    case "SCHEMA_VALIDATION_FAILED":
      return new RejectedError("the request was rejected", { response, mayHaveRun: false });
    default:
      return new FunctionError("the function failed", { response });
  }
}

function describeErrors({ errors = [] }: Response): string {
  const describe = ({ message, code, source }: ServerError) =>
    `${message} (${code})${source?.pointer === undefined ? "" : ` at ${source.pointer}`}`;
  return errors.map(describe).join("; ");
}

/** Whether the lock was refused because it is held. */
export function isContended(error: unknown): error is ContendedError | TimedOutError {
  return error instanceof ContendedError || error instanceof TimedOutError;
}

/** Whether the answer to `extend` or `release` proves that the lease has ended. */
export function isProofOfLoss(error: unknown): error is NotHeldError | MismatchError | AlreadyReleasedError {
  return error instanceof NotHeldError || error instanceof MismatchError || error instanceof AlreadyReleasedError;
}

/** The text of an error that a library threw; that of several failed addresses has none of its own. */
export function describe(error: unknown): string {
  if (error instanceof AggregateError && error.message === "") return error.errors.map(describe).join(", ");
  return error instanceof Error ? error.message : String(error);
}
