// The failures of all transports.

import { CancelledError, LostAnswerError, NotUnderstoodError, UnreachableError } from "../errors.js";

export function unreachable(why: string, cause?: unknown): UnreachableError {
  return new UnreachableError(`the server cannot be reached: ${why}`, { cause, mayHaveRun: false });
}

export function notUnderstood(why: string, cause?: unknown): NotUnderstoodError {
  return new NotUnderstoodError(`the answer cannot be understood: ${why}`, { cause });
}

export function cancelled(stop: AbortSignal | undefined, mayHaveRun: boolean): CancelledError {
  return new CancelledError("given up by its caller", { cause: stop?.reason, mayHaveRun });
}

export function lostAnswer(why: string, cause?: unknown, retryAfter?: number): LostAnswerError {
  return new LostAnswerError(`no answer came, and the request may have been carried out: ${why}`, { cause, retryAfter });
}
