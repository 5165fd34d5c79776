// When a lease ends, by the clock alone.

import assert from "node:assert/strict";
import { test } from "node:test";
import { now } from "../src/clock.js";
import { LostError } from "../src/index.js";
import { Tenure, termOf } from "../src/tenure.js";

const at = new Date();

test("a lease ends 1 % and 2 ms before its time is over, counted from before the request", () => {
  const { from, until } = termOf(1_000, 3_000, 3_000, at);
  assert.deepEqual([from, until], [1_000, 1_000 + 3_000 - 32]);
  // After a wait of 5 s, it begins when it was granted.
  assert.equal(termOf(1_000, 5_000 + 3_000, 3_000, at).from, 6_000);
});

test("a late answer does not revive a lease, although no timer has noticed its end", () => {
  const tenure = new Tenure(termOf(now() - 10_000, 3_000, 3_000, at));
  tenure.extend(termOf(now(), 3_000, 3_000, at));
  assert(!tenure.isHeld);
  assert(tenure.loss instanceof LostError);
  assert(tenure.lost.aborted && tenure.over.aborted);
});

test("a lease that was given back is never lost", () => {
  const tenure = new Tenure(termOf(now(), 3_000, 3_000, at));
  tenure.end();
  tenure.lose(new LostError("late"));
  assert.equal(tenure.loss, undefined);
  assert(!tenure.isHeld && !tenure.lost.aborted && tenure.over.aborted);
});

test("a lost lease stays lost when it is given back", () => {
  const tenure = new Tenure(termOf(now(), 3_000, 3_000, at));
  const loss = new LostError("gone");
  tenure.lose(loss);
  tenure.end();
  tenure.extend(termOf(now(), 3_000, 3_000, at));
  assert.equal(tenure.loss, loss);
});
