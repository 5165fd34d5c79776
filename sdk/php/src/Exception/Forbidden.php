<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The caller may not do this (`FORBIDDEN`).
 */
final class Forbidden extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return false;
    }
}
