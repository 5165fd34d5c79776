import assert from "node:assert/strict";

/** The error of a promise that has to fail with that class of errors. */
export async function failure<E extends Error>(promise: Promise<unknown>, type: new (...args: never[]) => E): Promise<E> {
  const error = await promise.then(
    (value) => assert.fail(`it succeeded with ${JSON.stringify(value)}`),
    (error: unknown) => error,
  );
  assert(error instanceof type, `${error}`);
  return error;
}
