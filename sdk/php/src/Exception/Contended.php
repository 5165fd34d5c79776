<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The lock is held, and the request did not wait for it (`LOCK_ACQUISITION_FAILED`).
 */
final class Contended extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return $this->failure?->hasAcquiredLock() === true;
    }
}
