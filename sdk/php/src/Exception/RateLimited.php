<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * Too many requests (`RATE_LIMITED`).
 */
final class RateLimited extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return $this->failure?->hasAcquiredLock() === true;
    }
}
