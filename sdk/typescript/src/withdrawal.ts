// Withdraws an acquisition in the background when its caller has stopped waiting for it: the call leaves the queue, or the lock that it was
// granted is released. Closing the connection is not enough: the grant may be on its way.

import type { Claim } from "./acquire.js";
import type { Connection } from "./connection.js";
import { ForrstError, isContended, RejectedError } from "./errors.js";
import { readGrant } from "./held.js";
import { toWire } from "./duration.js";
import { inBackground } from "./retry.js";
import { ACQUIRE, RELEASE, WITHDRAW } from "./wire.js";

/** The ttl of an acquisition that is repeated only to be released: it expires soon even if that fails. */
const BRIEF = 2_000;

export async function withdraw(connection: Connection, claim: Claim): Promise<void> {
  const { owner, attempt } = claim.arguments;
  // Afterwards the lease has expired anyway.
  const tries = connection.triesInBackground(inBackground(claim.ttl), claim.ttl);
  const patience = Math.min(connection.timeout, claim.ttl);
  try {
    await connection.ask(WITHDRAW, { key: claim.fullKey, owner, attempt }, { tries, patience });
  } catch (error) {
    if (error instanceof RejectedError) await repeatAndRelease(connection, claim);
  }
}

/**
 * For a server that cannot withdraw: repeats the attempt with hardly any time to wait. It takes over the queue position of the first
 * request, and leaves it; or it gets the lease of the first request, and releases it.
 */
async function repeatAndRelease(connection: Connection, claim: Claim): Promise<void> {
  const retry = inBackground(claim.ttl);
  const tries = connection.triesInBackground(retry, claim.ttl);
  const args = { ...claim.arguments, ttl: toWire(Math.min(claim.ttl, BRIEF)), block: toWire(1) };
  for (;;) {
    try {
      const { fullKeys, owner, fence } = readGrant(await connection.askOnce(ACQUIRE, args));
      const releasing = connection.triesInBackground(retry, claim.ttl);
      await connection.ask(RELEASE, { key: fullKeys[0], owner, fence }, { tries: releasing });
      return;
    } catch (error) {
      if (!(error instanceof ForrstError) || isContended(error)) return;
      await tries.after(error);
    }
  }
}
