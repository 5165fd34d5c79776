<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The lease was released before, by its owner or by force (`LOCK_ALREADY_RELEASED`).
 */
final class AlreadyReleased extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return true;
    }
}
