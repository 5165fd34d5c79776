<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Held;

/**
 * A lock that was granted, and when it was asked for.
 *
 * @internal
 */
final class Grant
{
    public function __construct(
        public readonly Held $held,
        /** Just before the request that was answered. */
        public readonly float $sent,
        /** Just before the first request that may have been granted. */
        public readonly float $since,
    ) {
    }

    /** For how long the lock is held, with this `ttl`. */
    public function term(float $ttl): Term
    {
        if ($this->held->elapsed === null || $this->held->ttlRemaining === null) {
            return new Term($this->since, $ttl);
        }
        return new Term($this->sent, $this->held->elapsed + $this->held->ttlRemaining);
    }
}
