<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The request is invalid, and nothing was done: its arguments, function, version or extensions are wrong.
 */
final class Rejected extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return false;
    }
}
