/// <reference lib="esnext.disposable" preserve="true" />
// The client of the Forrst lock server: locks with leases and fences for work that runs here, and calls of functions under a lock.

export type { LockOptions } from "./acquire.js";
export type { CallOptions, FunctionLock } from "./call.js";
export { Client, type ClientOptions } from "./client.js";
export type { Duration } from "./duration.js";
export {
  type ErrorKind,
  ForrstError,
  ContendedError,
  TimedOutError,
  LostError,
  MismatchError,
  NotHeldError,
  AlreadyReleasedError,
  DeadlineExceededError,
  CancelledError,
  UnavailableError,
  UnreachableError,
  LostAnswerError,
  RateLimitedError,
  UnauthorizedError,
  ForbiddenError,
  RejectedError,
  FunctionError,
  NotUnderstoodError,
} from "./errors.js";
export { type Held, heldFrom } from "./held.js";
export { fullKey, type Key, type Keys, type Kind } from "./keys.js";
export { Lease } from "./lease.js";
export type { FreeLock, Holder, LockInfo, Locks, LockStatus, Page, Waiter } from "./locks.js";
export type { RetryOptions } from "./retry.js";
export type { TlsOptions } from "./transport.js";
export type { Extension, Response, ServerError } from "./wire.js";
