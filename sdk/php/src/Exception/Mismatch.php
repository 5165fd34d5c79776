<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The lock belongs to another owner, or to another lease of the same one (`LOCK_OWNERSHIP_MISMATCH`).
 */
final class Mismatch extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return true;
    }
}
