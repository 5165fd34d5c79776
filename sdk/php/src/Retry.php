<?php

declare(strict_types=1);

namespace Forrst;

/**
 * How often and for how long a request is tried, with exponential backoff and jitter.
 *
 * A request is retried only if it was certainly not carried out, or may safely be carried out twice. A request that waits for a
 * lock is retried until its wait is over. If the server names a time (`retry_after`), the pause is at least that long.
 */
final class Retry
{
    /**
     * @param int $attempts the maximum number of tries, the first included
     * @param float $firstPause the longest pause before the second try; it doubles for each further one
     * @param float $longestPause the longest pause before any try, unless the server names a longer one
     * @param float $within how many seconds after the first try the last one may begin
     * @param bool $onContention also retry when the lock is held. To wait in the queue of the server is fair and faster
     */
    public function __construct(
        public readonly int $attempts = 4,
        public readonly float $firstPause = 0.1,
        public readonly float $longestPause = 2.0,
        public readonly float $within = 15.0,
        public readonly bool $onContention = false,
    ) {
    }

    /** A single try. */
    public static function never(): self
    {
        return new self(attempts: 1);
    }

    /**
     * For what is pointless after that time.
     *
     * @internal
     */
    public static function inBackground(float $time): self
    {
        return new self(PHP_INT_MAX, 0.05, 1.0, $time);
    }

    /**
     * The pause after so many failed tries: half of it is fixed, the other half random.
     *
     * @internal
     */
    public function backoff(int $failed): float
    {
        $full = min($this->firstPause * 2.0 ** min($failed - 1, 60), $this->longestPause);
        return $full / 2 + $full / 2 * mt_rand() / mt_getrandmax();
    }
}
