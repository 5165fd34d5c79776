<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The lock was held for as long as the request waited for it (`LOCK_TIMEOUT`).
 */
final class TimedOut extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return $this->failure?->hasAcquiredLock() === true;
    }
}
