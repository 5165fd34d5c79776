<?php

declare(strict_types=1);

namespace Forrst;

/**
 * A page of the held locks.
 */
final class Page
{
    /**
     * @param list<LockStatus> $locks
     */
    public function __construct(
        public readonly array $locks,
        /** Where the next page begins; null after the last. */
        public readonly ?string $cursor,
    ) {
    }
}
