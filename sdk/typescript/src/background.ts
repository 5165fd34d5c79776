// Work that goes on when its caller has gone on, such as withdrawing an acquisition. It is counted, so that a program can wait for it.

import { limited } from "./clock.js";

export class Background {
  readonly #running = new Set<Promise<void>>();

  /** Runs background work. Its failure concerns nobody: what could not be released ends when it expires. */
  run(work: () => Promise<unknown>): void {
    const running: Promise<void> = work()
      .then(noop, noop)
      .finally(() => this.#running.delete(running));
    this.#running.add(running);
  }

  /** Waits until nothing runs any more, at most `limit` milliseconds. Whether that is so. */
  async settle(limit: number): Promise<boolean> {
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<boolean>((resolve) => {
      // Keeps the process alive, which background work does not.
      timer = setTimeout(resolve, limited(limit), false);
    });
    const idle = async () => {
      while (this.#running.size > 0) await Promise.all(this.#running);
      return true;
    };
    return Promise.race([idle(), timeout]).finally(() => clearTimeout(timer));
  }
}

function noop(): void {}
