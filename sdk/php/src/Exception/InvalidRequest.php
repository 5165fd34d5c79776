<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The request could not be built, and nothing was sent: an argument or an option is invalid.
 */
final class InvalidRequest extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return false;
    }
}
