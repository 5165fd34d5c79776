<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The API key is missing or wrong (`UNAUTHORIZED`).
 */
final class Unauthorized extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return false;
    }
}
