<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The lock is not held (`LOCK_NOT_FOUND`).
 */
final class NotHeld extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return true;
    }
}
