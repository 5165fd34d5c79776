<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * No connection to the server could be made. Nothing was sent.
 */
final class Unreachable extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return false;
    }
}
